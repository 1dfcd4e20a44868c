"""Decomposing a weight: cores for any graph, ranks from a target, metrics from data, and canonical forms."""
