"""Layouts that several libraries have: cores with given modes, in a line, in a ring, around a hub or on one bond."""

from __future__ import annotations

from collections.abc import Sequence

Sites = Sequence[Sequence[str]]
"""The modes of each core."""
Cores = dict[str, list[str]]


def line(sites: Sites) -> Cores:
    """Each core between a bond to the core before and one to the core after; the outermost bonds have size 1.

    >>> line([["a"], ["b"]])
    {'G1': ['r0', 'a', 'r1'], 'G2': ['r1', 'b', 'r2']}
    """
    return {f"G{at}": [f"r{at - 1}", *site, f"r{at}"] for at, site in enumerate(sites, 1)}


def ring(sites: Sites) -> Cores:
    """A line whose last bond is its first.

    >>> ring([["a"], ["b"]])
    {'G1': ['r0', 'a', 'r1'], 'G2': ['r1', 'b', 'r0']}
    """
    count = len(sites)
    return {f"G{at}": [f"r{at - 1}", *site, f"r{at % count}"] for at, site in enumerate(sites, 1)}


def hub(sites: Sites) -> Cores:
    """A core with a bond to each of the others.

    >>> hub([["a"], ["b"]])
    {'G': ['r1', 'r2'], 'U1': ['a', 'r1'], 'U2': ['b', 'r2']}
    """
    factors = {f"U{at}": [*site, f"r{at}"] for at, site in enumerate(sites, 1)}
    return {"G": [f"r{at}" for at in range(1, len(sites) + 1)], **factors}


def one_bond(sites: Sites, *, weights: bool = False) -> Cores:
    """All cores on one bond; with `weights`, also a vector of them.

    >>> one_bond([["a"], ["b"]], weights=True)
    {'A1': ['a', 'r'], 'A2': ['b', 'r'], 'weights': ['r']}
    """
    cores = {f"A{at}": [*site, "r"] for at, site in enumerate(sites, 1)}
    return {**cores, "weights": ["r"]} if weights else cores
