"""Shrinking while training: a path of cuts with short annealed stages, from which ranks choose themselves."""
