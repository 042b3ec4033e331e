"""Decode image files."""
