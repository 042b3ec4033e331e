"""Run the jobs of a comparison with Ray."""

from ssl_toolkit_ray.launcher import Ray

__all__ = ["Ray"]
