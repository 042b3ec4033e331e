"""Classifiers on the frozen features of a pre-trained backbone."""

from ssl_toolkit_probes.graph import GraphProbe
from ssl_toolkit_probes.linear import LinearProbe
from ssl_toolkit_probes.neighbors import KNearestNeighbors
from ssl_toolkit_probes.propagation import LabelPropagation, LabelSpreading

__all__ = ["GraphProbe", "KNearestNeighbors", "LabelPropagation", "LabelSpreading", "LinearProbe"]
