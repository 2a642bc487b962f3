"""Carries plans out: bytes moved between files and live memory, within a memory budget. Decides nothing."""
