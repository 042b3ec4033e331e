"""Plan the runs of a comparison and carry them out."""
