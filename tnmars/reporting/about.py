"""How a report was made: the settings of each layer, and the versions of the software."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from datetime import datetime
from importlib import metadata
from typing import Any

import torch

from tnmars import __version__
from tnmars.layer.module import TNModule
from tnmars.reporting.value import Rows
from tnmars.timing.machine import processor


def settings(before: TNModule, after: TNModule) -> Rows:
    """How a layer was compiled and cut."""
    values: dict[str, Any] = {}
    selector = before.selector or after.selector
    if selector is not None:
        given = selector.settings()
        values["selector"] = given.pop("name")
        values |= {f"selector {name}": value for name, value in given.items()}
    origin = after.graph.origin
    if isinstance(origin, Mapping) and "step" in origin:
        values["pruned at step"] = origin["step"]
    planner = after.planner
    values |= {
        "nominal batch": planner.nominal,
        "orders from": planner.optimizer,
        "plans timed": planner.decide is not None,
        "open slices only": before.open_only,
        "init": before.rule if before.rule is not None else "default",
        "type": str(after.dtype).removeprefix("torch."),
        "device": str(after._anchor.device),
    }
    return tuple((name, _text(value)) for name, value in values.items())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def versions(threads: int) -> Rows:
    """The software and the machine."""
    now = datetime.now().astimezone()
    return (
        ("tnmars", __version__),
        ("torch", str(torch.__version__)),
        ("opt_einsum", metadata.version("opt_einsum")),
        ("Python", platform.python_version()),
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("processor", processor()),
        ("torch threads", str(threads)),
        ("written", now.strftime("%Y-%m-%d %H:%M %Z")),
    )
