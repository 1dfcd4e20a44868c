"""Prints the lowest versions that pyproject.toml declares, as constraints for pip.

    python tests/scripts/lowest.py [NAME]

With a name, only the version of that package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
SECTIONS = ("dependencies", "viz", "dev")
"""What the tests need; other extras are optional there."""
TOOLS = ("ruff", "mypy", "pip")
"""Tools that only read the code: their versions do not matter."""


def lowest() -> dict[str, str]:
    """The lowest version of each package."""
    text = PROJECT.read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for section in SECTIONS:
        block = re.search(rf"^{section} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
        assert block is not None, section
        found |= dict(re.findall(r'"([A-Za-z_-]+)>=([0-9.]+)"', block[1]))
    return {name: version for name, version in found.items() if name not in TOOLS}


if __name__ == "__main__":
    listed = lowest()
    print(listed[sys.argv[1]] if len(sys.argv) > 1 else "\n".join(f"{name}=={one}" for name, one in listed.items()))
