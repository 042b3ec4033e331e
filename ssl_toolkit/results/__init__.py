"""Runs in their folders: what is recorded, shown and reported."""
