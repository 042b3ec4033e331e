"""Data sets with a name."""
