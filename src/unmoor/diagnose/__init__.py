"""Catalog (+ Target) -> findings: what will fail, where, and the line that fixes it. Pure: no files, no torch."""
