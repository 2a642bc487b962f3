"""Damage that a disk or a copy does to a checkpoint: found before it is used, and what is whole is rescued."""
