"""Broken training steps, and what a context around them says."""
