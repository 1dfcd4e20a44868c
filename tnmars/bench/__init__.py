"""The benchmark: compiled layers against torch's own, plain torch, and the layers of other packages.

Every figure is a ratio within one interleaved run. `python -m tnmars.bench` runs it all.
"""
