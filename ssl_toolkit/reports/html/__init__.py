"""One self-contained page on a comparison: numbers, curves, classes, settings."""
