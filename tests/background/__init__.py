"""Saves in the background: what they copy, into which memory, who writes it, and how that ends."""
