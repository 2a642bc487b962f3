"""Fixtures for all tests."""

pytest_plugins = ["tests.accelerator.plugin", "tests.order", "tests.skips"]
