"""One mistake in a spec file gives one message."""

from __future__ import annotations

import re
from textwrap import dedent

from tnmars.graph import rules
from tnmars.spec import consequences, read


def test_the_example_of_the_docstring() -> None:
    lines = [line for line in (consequences.__doc__ or "").splitlines() if line.startswith("    ")]
    text = "tnmars: 1\n" + dedent("\n".join(lines))
    assert [problem.text for problem in read(text.encode()).problems] == [
        "'i' is '8x', but must be a size.",
        "entry 2 of 'B' is '0', but must be a name.",
    ]
    quoted = re.findall(r'^- "(.*?)"', consequences.__doc__ or "", re.MULTILINE)
    assert len(quoted) == 2, "what is left out is listed in the docstring"
    mended = text.replace("8x", "1").replace("0]", "r2]").replace("{r: 2}", "{r: 2, r2: 2}")
    found = [problem.text for problem in read(mended.encode()).problems]
    assert all(said in found for said in quoted), "each is a consequence that the rules would report"
    assert len(found) < rules.MAX_PROBLEMS
