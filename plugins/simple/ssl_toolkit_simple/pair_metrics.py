"""Metrics of the pairs in the equation of SimPLE's Pair Loss (arXiv:2103.16725)."""

from ssl_toolkit import Metric

_SHARE = "share of all pairs"
_FALSE_SHARE = "share of those pairs whose hidden labels differ"

PAIR_METRICS = (
    Metric("pair_confidence", "Pairs above the confidence threshold", _SHARE),
    Metric("pair_similarity", "Pairs above the similarity threshold", _SHARE),
    Metric("pair_both", "Pairs above both thresholds", _SHARE),
    # The engine computes these from `StepOutput.pairs`.
    Metric("pair_confidence_false", "False pairs above the confidence threshold", _FALSE_SHARE),
    Metric("pair_similarity_false", "False pairs above the similarity threshold", _FALSE_SHARE),
    Metric("pair_both_false", "False pairs above both thresholds", _FALSE_SHARE),
)
