"""What the verbs of the API do, stage by stage."""
