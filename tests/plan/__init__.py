"""Plans made from literals: no file is opened."""
