"""Send the metrics of a run to other tools."""
