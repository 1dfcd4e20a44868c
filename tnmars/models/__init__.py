"""Whole models: from a trained model to a smaller one, and back."""
