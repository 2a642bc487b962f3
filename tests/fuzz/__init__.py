"""Fuzzing of every reader: what is fed to them, what may come out, and who else is asked.

`python -m tests.fuzz` fuzzes for FUZZ_SECONDS (an hour by default), `make test` for a minute. FUZZ_SEED varies both.
"""
