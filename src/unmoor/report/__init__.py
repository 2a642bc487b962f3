"""Values as text and JSON. Pure: no file is opened, nothing is printed, no torch."""
