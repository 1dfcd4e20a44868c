"""Pruning: what the gates keep becomes a smaller graph; weights and optimizer state follow."""
