"""The training loop and its parts: views, averages, evaluation, checkpoints."""
