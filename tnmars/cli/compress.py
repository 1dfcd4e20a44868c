"""`compress`: a trained model of the user's own, to a budget. It imports torch."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tnmars.cli.graphs import JSON, NamedPath
from tnmars.cli.outputs import check_folder, check_model, check_page
from tnmars.errors import TnmarsError
from tnmars.files import resolved, write_together

if TYPE_CHECKING:
    from torch import nn

    from tnmars.models.plan import CompressionPlan

EVERY = 2.0
"""Seconds between lines of progress, without a terminal."""
WORDS: dict[str, Any] = {"dense": None}
"""What a rule may say in place of a family."""


def _rules(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any] | None:
    rules: dict[str, Any] = {}
    for text in texts:
        pattern, _equals, targets = (part.strip() for part in text.rpartition("="))
        several = [target.strip() for target in targets.split(",")]
        if not pattern or not all(several):
            raise click.BadParameter(f"'{text}' must be PATTERN=FAMILY, for example 'layer*.conv*=tucker2'.")
        if pattern in rules:
            raise click.BadParameter(f"pattern '{pattern}' is given twice; the first match wins.")
        if len(several) > 1 and any(target in WORDS for target in several):
            raise click.BadParameter(f"'{text}': {' and '.join(WORDS)} stand alone, not in a list.")
        rules[pattern] = WORDS[several[0]] if several[0] in WORDS else several[0] if len(several) == 1 else several
    return rules or None


def _arguments(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    from tnmars.models.command import argument

    try:
        return dict(map(argument, texts))
    except TnmarsError as error:
        raise click.BadParameter(str(error)) from None


@click.command(epilog="Example: tnmars compress net:build --data inputs.npy --budget 4x -o small.safetensors")
@click.argument("model")
@click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", callback=_arguments, help="Pass to FUNCTION.")
@click.option("--weights", type=NamedPath(), help="A .safetensors file with all tensors of the model's state dict.")
@click.option(
    "--data",
    required=True,
    type=NamedPath(),
    help="Calibration inputs without labels, samples first: .npy, or .safetensors with one tensor or with one for each "
    "argument of the model.",
)
@click.option("--budget", required=True, help="For the whole model: 4x, 250000, '1.5 MB', '2x macs' or '12 ms'.")
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="PATTERN=FAMILY",
    callback=_rules,
    help="How matching layers are decomposed: a family, several separated by commas (the best is taken), a spec file, "
    "'default', or 'dense' to keep them. The first match wins; without a match a layer stays dense "
    "[default: every layer, by its default families].",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--batch", type=click.IntRange(1, 10**6), default=64, show_default=True, help="Samples per batch.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Seed of all random numbers.")
@click.option("--threads", type=click.IntRange(1, 4096), help="Number of threads [default: torch's].")
@click.option("-o", "--output", type=NamedPath(dir_okay=False), help="The file of the compressed model.")
@click.option("--report", type=NamedPath(dir_okay=False), help="A page on the model before and after (.html).")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@JSON
def compress(model: str, data: str, budget: str, rules: dict[str, Any] | None, as_json: bool, **asked: Any) -> None:
    """Compress a trained model to a budget.

    MODEL is MODULE:FUNCTION. The module is imported from the current folder, and the function returns the model, an
    nn.Module. Nothing else is executed, and no pickle is read.

    Every layer is decomposed for the data that it sees, and all layers share one budget. Prints the plan: what becomes
    of each layer, and how much the outputs change. Writes the compressed model as a file of tnmars.save, for
    tnmars.load_into; either all files are written or none.
    """
    output, report = asked["output"], asked["report"]
    _check_files(output, report, asked["dry_run"], (data, asked["weights"]))

    import torch

    from tnmars.models.command import batched, built, load_weights_
    from tnmars.store.arrays import read_all

    if asked["threads"]:
        torch.set_num_threads(asked["threads"])
    torch.manual_seed(asked["seed"])
    inputs = read_all(data)
    tensors = _weights(asked["weights"]) if asked["weights"] else None
    dense = built(model, asked["arguments"], Path.cwd())
    if tensors is not None:
        load_weights_(dense, tensors, asked["weights"])
    samples = batched(dense, inputs, asked["batch"], data)
    plan, doubts = _planned(dense, rules, budget, samples, asked["seed"], asked["quiet"])
    for doubt in doubts:
        click.echo(f"warning: {doubt}", err=True)
    if not asked["dry_run"]:
        _check_files(output, report, False, (data, asked["weights"]))  # the work took a while
    written = [] if asked["dry_run"] else _written(dense, plan, output, report)
    if as_json:
        click.echo(json.dumps({"files": written, **plan.as_json()}, indent=1))
        return
    click.echo(str(plan))
    for path in written:
        click.echo(f"wrote {path}")


def _check_files(output: str | None, report: str | None, is_dry: bool, read: tuple[str | None, ...]) -> None:
    """Refuses outputs that are missing, inputs, not ours, the same, or in no folder, before the work starts."""
    if not output and not is_dry:
        raise click.UsageError("give the file to write with --output, or --dry-run to see the plan.")
    for path, flag, check in ((output, "--output", check_model), (report, "--report", check_page)):
        if not path:
            continue
        check(path, *read, flag=flag)
        check_folder(path, flag)
    if output and report and resolved(output) == resolved(report):
        raise click.BadParameter(f"'{report}' is also the file of the model.", param_hint="--report")


def _weights(path: str) -> dict[str, Any]:
    from tnmars.store.arrays import read_all

    if Path(path).suffix.lower() != ".safetensors":
        raise click.BadParameter(
            f"'{path}' must be a .safetensors file: files of torch.save are pickles, which are not read.",
            param_hint="--weights",
        )
    return read_all(path)


def _planned(
    model: nn.Module, rules: dict[str, Any] | None, budget: str, samples: list[Any], seed: int, quiet: bool
) -> tuple[CompressionPlan, list[str]]:
    """The plan, and warnings about it."""
    from tnmars.models.compression import CompressionWarning, plan_compression

    shown = time.monotonic()

    def watch(what: str, step: int, steps: int) -> None:
        nonlocal shown
        if time.monotonic() - shown > EVERY:
            shown = time.monotonic()
            click.echo(f"compress: {what}, {step} of {steps}" if steps else f"compress: {what}, {step}", err=True)

    is_plain = not quiet and not sys.stderr.isatty()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CompressionWarning)
        plan = plan_compression(
            model,
            rules,
            budget=budget,
            data=samples,
            seed=seed,
            watch=watch if is_plain else None,
            progress=False if quiet else None,
        )
    return plan, [str(entry.message) for entry in caught if issubclass(entry.category, CompressionWarning)]


def _written(dense: nn.Module, plan: CompressionPlan, output: str, report: str | None) -> list[str]:
    """Compresses the model and writes the files: all of them, or none."""
    import copy

    from tnmars.models.compression import compress_
    from tnmars.reporting import collect, page
    from tnmars.store.model import save

    before = copy.deepcopy(dense) if report else None
    compress_(dense, plan)
    writers = {output: lambda path: save(dense, path)}
    if report and before is not None:
        title = f"{type(dense).__name__}, {plan.budget}"
        text = page(collect(before, dense, title=title, measure=False, plan=plan))
        writers[report] = lambda path: path.write_text(text, encoding="utf-8")
    write_together(writers)
    return [os.fspath(path) for path in writers]
