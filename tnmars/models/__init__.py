"""Whole models: parameters of any module that are rebuilt from the cores of a graph."""
