"""Training steps on a device that is not here."""
