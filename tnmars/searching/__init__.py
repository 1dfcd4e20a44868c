"""Searching for ranks: random and cross-entropy search under a budget, by a score of the user's own."""
