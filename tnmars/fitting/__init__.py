"""Fitting a tensor: a search from ranks that are too large to the network with the shortest description."""

from tnmars.fitting.ranks import fit
from tnmars.fitting.value import Fitted, FitWarning, Point

__all__ = ["FitWarning", "Fitted", "Point", "fit"]
