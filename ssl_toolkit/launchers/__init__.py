"""Run the jobs of a comparison: on this machine, and what launchers of plugins share."""
