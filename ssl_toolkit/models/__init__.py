"""Backbones, the classifier around them, and their weights."""
