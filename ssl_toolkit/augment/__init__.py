"""Augmenters: none, weak, RandAugment and the fixed pipeline; their parameters are drawn first."""
