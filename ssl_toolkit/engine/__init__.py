"""The training loop and what it stands on: views, averages, evaluation, checkpoints."""
