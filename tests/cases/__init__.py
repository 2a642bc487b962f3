"""Reports from the field, each as a small file built here and the value that is right for it."""
