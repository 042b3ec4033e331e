"""Loading, layering and validating configurations; no torch in here."""
