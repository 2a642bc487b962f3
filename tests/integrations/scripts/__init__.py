"""What runs in the environment of the other programs, one script each."""
