"""Every recipe trains on tiny files in the published form of its data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_files import (
    accept_tiny_files,
    write_cifar10,
    write_cifar100,
    write_domainnet_real,
    write_mini_imagenet,
)

from ssl_toolkit import train
from ssl_toolkit.config.loading import load_config
from ssl_toolkit.models.factory import find_backbone
from ssl_toolkit.recipes import Recipe, load_recipes
from ssl_toolkit.recipes.load import AUTOMATIC_KEYS

FILES = ("simple", "usb-classic")
