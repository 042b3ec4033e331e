"""Start and stop child processes."""
