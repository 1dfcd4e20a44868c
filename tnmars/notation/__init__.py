"""Notations of other tools: graphs from einsum equations, without torch."""
