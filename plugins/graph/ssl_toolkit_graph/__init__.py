"""Methods that relate images to one another by a graph or a memory of embeddings."""

from ssl_toolkit_graph.comatch import CoMatch
from ssl_toolkit_graph.deep_label_propagation import DeepLabelPropagation
from ssl_toolkit_graph.simmatch import SimMatch

__all__ = ["CoMatch", "DeepLabelPropagation", "SimMatch"]
