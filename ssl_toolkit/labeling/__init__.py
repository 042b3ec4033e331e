"""Labeling images: which to label next, a page to label them, and files of other tools."""
