"""The integrations, each with the real program in the environment of tests/dialects."""
