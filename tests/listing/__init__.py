"""Folders of checkpoints are listed, and the newest that can be resumed from is found."""
