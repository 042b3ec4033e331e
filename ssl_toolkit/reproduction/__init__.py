"""List the rows of published tables, run them, and set the results beside the published ones."""
