"""Run the jobs of a comparison on this machine; base of the launchers of plugins."""
