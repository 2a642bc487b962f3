"""Many ranks: how they meet, and torch.distributed.checkpoint as the engine that writes what they hold."""
