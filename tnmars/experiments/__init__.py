"""Experiments: the paper's, one file each, on one small training loop."""
