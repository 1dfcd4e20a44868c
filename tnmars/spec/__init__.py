"""Spec files: YAML text to graph and back.

Example:
    >>> from tnmars import families, spec
    >>> graph = families.cp("tensor", free=(4, 5, 6), rank=2)
    >>> spec.loads(spec.dump(graph)) == graph
    True
"""

from tnmars.spec.reader import Spec, load, loads, read, read_file
from tnmars.spec.schema import schema, schema_text
from tnmars.spec.writer import document, dump, save_spec

__all__ = ["Spec", "document", "dump", "load", "loads", "read", "read_file", "save_spec", "schema", "schema_text"]
