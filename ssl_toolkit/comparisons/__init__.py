"""Read finished runs and compare their scores."""
