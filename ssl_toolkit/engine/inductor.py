"""A pass over the graphs that torch's compiler makes; imported with the compiler only."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

_aten = torch.ops.aten
_ALL_BUT_CHANNELS = [0, 2, 3]


class RowsFirst(CustomGraphPass):
    """Sums over all but the channels, as BatchNorm takes them, in two stages: rows, then the rest.

    The compiler's loops on a CPU go through a channels-last tensor once for every eight channels.
    A row of a map stays in the cache while that is done.
    """

    def __call__(self, graph: Graph) -> None:
        """Rewrite sums and variances of (N, C, H, W) over N, H and W."""
        for node in list(graph.nodes):
            if node.op != "call_function" or list(node.args[1:2]) != [_ALL_BUT_CHANNELS]:
                continue
            with graph.inserting_before(node):
                if node.target is _aten.sum.dim_IntList and not node.kwargs:
                    keep = len(node.args) > 2 and bool(node.args[2])
                    node.replace_all_uses_with(_sum(graph, node.args[0], keep), propagate_meta=True)
                    graph.erase_node(node)
                elif node.target is _aten.var_mean.correction:
                    _replace_moments(graph, node)

    def uuid(self) -> str:
        """The name under which the compiler keeps what it made."""
        return "ssl_toolkit.RowsFirst 1"


def _sum(graph: Graph, images: Any, keep: bool) -> Node:
    rows = graph.call_function(_aten.sum.dim_IntList, (images, [3], True))
    return graph.call_function(_aten.sum.dim_IntList, (rows, _ALL_BUT_CHANNELS, keep))


def _replace_moments(graph: Graph, node: Node) -> None:
    if node.kwargs != {"correction": 0, "keepdim": True}:
        return
    images: Any = node.args[0]
    value = images.meta["val"]
    count = value.numel() // value.shape[1]
    mean = graph.call_function(_aten.div.Tensor, (_sum(graph, images, True), count))
    distance = graph.call_function(_aten.sub.Tensor, (images, mean))
    square = graph.call_function(_aten.mul.Tensor, (distance, distance))
    variance = graph.call_function(_aten.div.Tensor, (_sum(graph, square, True), count))
    for taken in list(node.users):
        index: Any = taken.args[1]
        taken.replace_all_uses_with((variance, mean)[index], propagate_meta=True)
        graph.erase_node(taken)
    graph.erase_node(node)
