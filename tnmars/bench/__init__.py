"""Benchmark: times of one graph on this machine: compiled, frozen, dense torch layer and plain torch."""
