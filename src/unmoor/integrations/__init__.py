"""Checkpoints of other programs' training loops, saved and found again by unmoor. One file a program.

`import unmoor` imports none of it, and each file imports its program when it is used.
"""
