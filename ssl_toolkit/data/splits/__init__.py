"""Draw, store and check splits."""
