"""Run the jobs of a comparison with Slurm; see `ssl_toolkit_slurm.launcher`.

This module imports nothing: Slurm jobs import `ssl_toolkit_slurm.task` alone, without torch.
"""
