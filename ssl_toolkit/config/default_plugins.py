"""The plugins that are used where the user names none.

This is the only file of the core that names plugins; everything else that it needs to know about
one is an attribute of its interface.
"""

from __future__ import annotations

ALGORITHM = "simple"
DATASET = "digits"
BACKBONE = "wrn_28_2"
PROBE = "linear_probe"
"""The algorithm that `compare` adds to a comparison of pre-trained runs."""
