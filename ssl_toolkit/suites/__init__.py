"""Benchmark suites: fixed comparisons of the same algorithms on several data sets."""
