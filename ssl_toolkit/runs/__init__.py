"""Train one model in a folder of its own: start, resume, record and check."""
