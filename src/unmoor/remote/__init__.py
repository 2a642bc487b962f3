"""Stores behind URLs, through fsspec: what lies there, bytes of it by position, objects that appear whole.

Knows nothing of checkpoints. fsspec is imported when a URL is used, and not before.
"""
