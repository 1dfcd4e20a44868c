"""Tables and logs that mean harm: histories, curves, searches, cost models, records of experiments, data sets."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from typing import Any

from forging import CODE, Attack, deep, pickled

BOMB = "[" + "[]," * 1_100_000 + "[]]"
NUMBER = "9" * 5000


def everywhere(what: str) -> Iterator[tuple[str, bytes, str]]:
    """What no table may be, whoever reads it."""
    yield "pickle", pickled(), what
    yield "deep", deep(100_000).encode(), what
    yield "deep_tables", deep(100_000, '{"a":', "}").replace(":}", ":1}").encode(), what
    yield "bomb_of_lists", BOMB.encode(), what
    yield "code", CODE.encode(), what
    yield "digits", NUMBER.encode(), what
    yield "a_number", b"7", what
    yield "text", b'"x"', what
    yield "utf16", '{"a": 1}'.encode("utf-16"), what


def histories() -> Iterator[tuple[str, bytes, str]]:
    yield from everywhere("history|not JSON|cannot be read")
    yield "digits_inside", f'{{"epoch": {NUMBER}}}'.encode(), "not JSON"
    yield "list_of_lists", b"[[1], [2]]", "not a list of tables"
    yield "nothing", b"", "history|not JSON"


def curve(**changes: Any) -> bytes:
    """The table of a path with one point, changed."""
    point = dict.fromkeys(("stage", "parameters", "bytes", "macs", "steps"), 5)
    point |= {"ms": 0.1, "ratio": 1.0, "score": 0.5, "seconds": 0.1, "error": None, "ranks": {"fc": {"r1": 1}}}
    whole = {
        "tnmars.curve": 1,
        "start": 0.5,
        "chosen_at": 0,
        "reason": "x",
        "is_finished": True,
        "budgets": {},
        "dense": {},
        "points": [point | changes.pop("point", {})],
    }
    return json.dumps(whole | changes).encode()


def curves() -> Iterator[tuple[str, bytes, str]]:
    what = "curve|table of tnmars|path"
    yield from everywhere(what)
    yield "version_of_the_future", curve(**{"tnmars.curve": 99}), "version 99"
    yield "version_of_code", curve(**{"tnmars.curve": CODE}), "version"
    yield "points_of_code", curve(points=CODE), what
    yield "points_of_numbers", curve(points=[1, 2]), what
    yield "point_outside", curve(point={"stage": "/../../canary"}), what
    yield "score_of_code", curve(point={"score": CODE}), what
    yield "ranks_of_code", curve(point={"ranks": CODE}), what
    yield "chosen_outside", curve(chosen_at=10**30), what
    yield "chosen_of_code", curve(chosen_at=CODE), what
    yield "key_that_is_a_list", curve(budgets={"$table": [[[], 1]]}), "data that tnmars does not write|curve"
    yield "duplicate_keys", b'{"tnmars.curve": 1,' + curve()[1:], "twice|curve"


def searches() -> Iterator[tuple[str, bytes, str]]:
    what = "not a file of tnmars.search_ranks|another search|version"
    yield from everywhere(what)
    for name, change in {
        "version_of_the_future": {"tnmars.search": 99},
        "trials_of_code": {"trials": CODE},
        "ranks_of_code": {"trials": [{"ranks": CODE, "score": 1.0, "seconds": 1.0}]},
        "ranks_too_large": {"trials": [{"ranks": [10**9] * 4, "score": 1.0, "seconds": 1.0}]},
        "score_of_code": {"trials": [{"ranks": [1], "score": CODE, "seconds": 1.0}]},
        "asked_for_code": {"asked": CODE},
    }.items():
        yield name, json.dumps({"tnmars.search": 1, "asked": {}, "trials": []} | change).encode(), what


def cost_models() -> Iterator[tuple[str, bytes, str]]:
    what = "must be a cost model"
    yield from (found for found in everywhere(what) if found[0] != "utf16")  # a table without a constant is one
    for name, value in {
        "peak_of_zero": 0,
        "peak_below_zero": -1,
        "peak_of_nan": float("nan"),
        "peak_of_code": CODE,
        "peak_of_lists": [],
        "peak_too_large": 10**400,
    }.items():
        yield name, json.dumps({"peak": value}).encode(), what


def records() -> Iterator[tuple[str, bytes, str]]:
    what = "record"
    good = {"experiment": "toy", "variant": "mars-8", "seed": 0, "epochs": None, "versions": {"commit": "x"}}
    yield from everywhere(what)
    for name, change in {
        "variant_of_code": {"variant": CODE, "result": {}},
        "result_of_code": {"result": CODE},
        "no_result": {},
        "seed_of_lists": {"seed": [], "result": {}},
        "no_versions": {"versions": None, "result": {"parameters": 1}},
        "time_of_code": {"cpu_seconds": CODE, "result": {}},
        "points_of_code": {"result": {"points": CODE}},
    }.items():
        yield name, json.dumps(good | change).encode(), what


def data_sets() -> Iterator[tuple[str, bytes, str]]:
    yield "bomb", lzma.compress(bytes(100_000_000), preset=0), "bytes"
    yield "bomb_of_tabs", lzma.compress(b"1\t" * 35_000_000, preset=0), "bytes"
    yield "not_compressed", pickled(), "cannot be|not a"
    yield "cut_off", lzma.compress(bytes(10_000))[:40], "cannot be|not a"


def attacks() -> list[Attack]:
    kinds = {
        "history": histories(),
        "curve": curves(),
        "search": searches(),
        "cost": cost_models(),
        "record": records(),
        "data": data_sets(),
    }
    return [Attack(f"{kind}_{name}", kind, *rest) for kind, listed in kinds.items() for name, *rest in listed]
