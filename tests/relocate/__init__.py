"""Tests of relocate."""
