"""Real checkpoints of published packages, and real training runs of published code. Marked `real`."""
