"""Catalog and Target to findings."""
