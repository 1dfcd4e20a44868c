"""The paper's experiments, one file each, on one small training loop."""
