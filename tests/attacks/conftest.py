"""Only `test_*.py` is for pytest: the other files of this folder belong to the process that `run.py` is."""

collect_ignore = ["forging.py", "model_files.py", "readers.py", "run.py", "spec_files.py", "table_files.py"]
collect_ignore += ["tensor_files.py"]
