"""Benchmark: compiled layers against torch's own layers, plain torch and other packages.

Every figure is a ratio within one interleaved run. `python -m tnmars.bench` runs it all.
"""

import os

# The profiler that counts memory prints a line for each use, unless it is told not to before torch is loaded.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
