"""`check`, `expand`, `show` and `schema`: the commands that read graphs. None of them imports torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from math import isfinite
from typing import Any, NoReturn

import click

from tnmars.errors import Problem, SpecError, listing, nearest, plural, render
from tnmars.graph import Core, Graph, Term
from tnmars.graph.counts import count
from tnmars.spec.nodes import MAX_BYTES
from tnmars.spec.reader import Spec, read, read_file


class NamedPath(click.Path):
    """A path that can be one: not empty, and without a NUL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value or "\0" in str(value):
            self.fail("the name of the file is empty." if not value else f"{value!r} holds a NUL.", param, ctx)
        return super().convert(value, param, ctx)


FILE = click.argument("file", type=NamedPath())
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
MOST_DIGITS = 100
"""A number with more digits is refused as malformed; a shorter one may still be reported as too large."""
MOST_BITS = 10_000
"""Larger integers are not printed: Python refuses to convert much longer ones to text."""


def _assignments(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    assigned: dict[str, int] = {}
    for text in texts:
        name, _equals, value = (part.strip() for part in text.partition("="))
        if not name or not (value.isascii() and value.isdigit()) or len(value) > MOST_DIGITS:
            raise click.BadParameter(f"'{text}' must be NAME=NUMBER, for example rank=8.")
        if value != str(int(value)):
            raise click.BadParameter(f"the number in '{text}' must not start with 0: write {name}={int(value)}.")
        if name in assigned:
            raise click.BadParameter(f"'{name}' is set twice.")
        assigned[name] = int(value)
    return assigned


def is_number(text: str, most: int) -> bool:
    """Whether a text is a whole number from 1 to `most`."""
    is_short = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    return is_short and 0 < int(text) <= most


SET = click.option(
    "--set",
    "params",
    multiple=True,
    metavar="NAME=NUMBER",
    callback=_assignments,
    help="Override a parameter of the spec file.",
)


def _read(file: str, params: dict[str, int]) -> Spec:
    return read(sys.stdin.buffer.read(MAX_BYTES + 1), params) if file == "-" else read_file(file, params)


def read_graph(file: str, params: dict[str, int], as_json: bool = False) -> Graph:
    """The graph in a file or on standard input. If it is invalid, prints what `check` would and exits with 2."""
    spec = _problems(file, params)
    if spec.graph is None:
        refuse(file, spec.problems, as_json)
    return spec.graph


LAYER = click.option("--layer", help="The layer of a saved model [default: all of them].")


def read_graphs(file: str, params: dict[str, int], as_json: bool, layer: str | None) -> dict[str, Graph]:
    """The graphs of a saved model by layer, or the graph of a spec file under an empty name.

    Exits with 2 as `read_graph` does, also if there is no such layer.
    """
    from tnmars.spec.model_file import graphs_in, is_model_file

    if file == "-" or not is_model_file(file):
        if layer is not None:
            text = f"'{file}' is a spec file, which has no layers."
            raise click.BadParameter(text, param_hint="--layer")
        return {"": read_graph(file, params, as_json)}
    if params:
        raise click.BadParameter(f"'{file}' is a saved model, whose sizes are fixed.", param_hint="--set")
    try:
        found = graphs_in(file)
    except SpecError as error:
        refuse(file, error.problems, as_json)
    if layer is not None and layer not in found:
        text = f"'{file}' has no layer '{layer}'; its layers: {listing(list(found))}.{nearest(layer, found)}"
        raise click.BadParameter(text, param_hint="--layer")
    return found if layer is None else {layer: found[layer]}


def titled(texts: dict[str, str]) -> str:
    """Texts of graphs, each under the name of its layer if there are several."""
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n\n".join(f"{name}:\n{text}" for name, text in texts.items())


def need_terms(file: str, graph: Graph, as_json: bool, verb: str) -> None:
    """Exits with 2 if a graph has no terms, as may happen after pruning."""
    if not graph.terms:
        refuse(file, (Problem(f"{file}: the graph has no terms, so there is nothing to {verb}."),), as_json)


def refuse(file: str, problems: tuple[Problem, ...], as_json: bool) -> NoReturn:
    """Prints problems as `check` does, and exits with 2."""
    spec = Spec(None, problems)
    if as_json:
        click.echo(json.dumps([_check_data(file, spec, [], strict=False)], indent=1))
    else:
        _print_check(file, spec, [], strict=False)
    raise click.exceptions.Exit(2)


def _problems(file: str, params: dict[str, int]) -> Spec:
    """The contents of a file; a file that cannot be read is one more problem."""
    try:
        return _read(file, params)
    except SpecError as error:
        return Spec(None, error.problems)


@click.command(epilog="Example: tnmars check specs/tt_linear.yaml --set rank=50 --strict")
@click.argument("files", nargs=-1, required=True, type=NamedPath())
@SET
@click.option("--strict", is_flag=True, help="Treat warnings as errors.")
@JSON
def check(files: tuple[str, ...], params: dict[str, int], strict: bool, as_json: bool) -> int:
    """Check spec files and report every problem with line and column.

    FILES are spec files; '-' is standard input. The exit status is 0 if all files are valid, and 2 otherwise.
    """
    checked = [_check(file, params) for file in files]
    if as_json:
        click.echo(json.dumps([_check_data(*entry, strict) for entry in checked], indent=1))
    else:
        for file, spec, warnings in checked:
            _print_check(file, spec, warnings, strict)
    return 2 if any(spec.graph is None or (strict and warnings) for _, spec, warnings in checked) else 0


def _check(file: str, params: dict[str, int]) -> tuple[str, Spec, list[Problem]]:
    from tnmars.graph.lint import lint
    from tnmars.spec.doubts import doubts

    spec = _problems(file, params)
    warnings = [*doubts(spec), *map(spec.locate, lint(spec.graph))] if spec.graph else []
    return file, spec, warnings


def _print_check(file: str, spec: Spec, warnings: list[Problem], strict: bool) -> None:
    for problem in spec.problems:
        source = file if problem.place else ""
        click.echo(render(problem, source=source, label=click.style("error", fg="red")), err=True)
    label = click.style("error", fg="red") if strict else click.style("warning", fg="yellow")
    for warning in warnings:
        click.echo(render(warning, source=file, label=label), err=True)
    if spec.graph is not None:
        click.echo(f"{file}: {click.style('ok', fg='green') if not warnings else 'read'}, {_sentence(spec.graph)}")


def _sentence(graph: Graph) -> str:
    numbers = count(graph)
    places = sum(len(term.cores) for term in graph.terms)
    cores = plural(len(graph.cores), "core") + (f" in {places:,} places" if places > len(graph.cores) else "")
    head = str(graph).splitlines()[0]
    return f"{head}; {cores}, {plural(numbers.cores, 'parameter')}, {numbers.sentence}"


def _check_data(file: str, spec: Spec, warnings: list[Problem], strict: bool) -> dict[str, Any]:
    listed = [(problem, "error") for problem in spec.problems]
    listed += [(problem, "error" if strict else "warning") for problem in warnings]
    data: dict[str, Any] = {
        "file": file,
        "ok": all(severity != "error" for _, severity in listed),
        "problems": problems_as_json(listed),
    }
    if spec.graph is not None:
        numbers = count(spec.graph)
        data |= {
            "name": spec.graph.name,
            "kind": spec.graph.kind,
            "dense_shape": spec.graph.dense_shape,
            "parameters": numbers.cores,
            "dense": numbers.dense if numbers.dense.bit_length() < MOST_BITS else None,
            "bias": numbers.other,
            "compression": numbers.compression if isfinite(numbers.compression) else None,
            "compression_with_bias": (
                numbers.compression_with_other if numbers.cores and isfinite(numbers.compression_with_other) else None
            ),
        }
    return data


def problems_as_json(listed: Iterable[tuple[Problem, str]]) -> list[dict[str, Any]]:
    """Problems with their severity, as every command prints them."""
    return [
        {
            "severity": severity,
            "line": problem.place.line if problem.place else None,
            "column": problem.place.column if problem.place else None,
            "text": problem.text,
            "hint": problem.hint,
        }
        for problem, severity in listed
    ]


@click.command(epilog="Example: tnmars expand specs/tt_linear_family.yaml --set rank=3")
@FILE
@SET
@JSON
def expand(file: str, params: dict[str, int], as_json: bool) -> None:
    """Print the explicit graph of a spec file.

    Families, copies and parameters of FILE are written out as modes, bonds and cores.
    """
    from tnmars.spec.writer import document, dump

    graph = read_graph(file, params, as_json)
    click.echo(json.dumps(document(graph), indent=1, ensure_ascii=False) if as_json else dump(graph), nl=as_json)


@click.command(epilog="Example: tnmars show specs/tt_linear.yaml -o graph.svg")
@FILE
@SET
@click.option(
    "-o",
    "--output",
    type=NamedPath(dir_okay=False),
    help="Write a picture: .svg, .pdf, .png, .tex (TikZ), .html or .dot. Needs tnmars[viz] for .pdf and .png.",
)
@click.option("--width", type=click.IntRange(20, 1000), help="Columns to draw in [default: the terminal's].")
@LAYER
@JSON
def show(
    file: str, params: dict[str, int], output: str | None, width: int | None, layer: str | None, as_json: bool
) -> None:
    """Draw the graph of a spec file or of a saved model.

    In the terminal, or as a picture with --output.
    """
    import shutil

    from tnmars.cli.pictures import check_picture, write_picture

    if output is not None:
        check_picture(output, file)
    found = read_graphs(file, params, as_json, layer)
    if output is not None:
        if len(found) > 1:
            text = f"'{file}' has {len(found)} layers, and a picture shows one: {listing(list(found))}."
            raise click.BadParameter(text, param_hint="--layer")
        write_picture(output, *found.values())
    if as_json:
        data = [{**({"layer": name} if name else {}), **_incidence(graph)} for name, graph in found.items()]
        click.echo(json.dumps(data[0] if len(data) == 1 else data, indent=1))
    elif output is None:
        from tnmars import draw

        columns = width or shutil.get_terminal_size().columns
        is_colored = sys.stdout.isatty()
        click.echo(titled({name: draw.terminal(graph, columns, colour=is_colored) for name, graph in found.items()}))
    else:
        click.echo(f"wrote {output}")


def _incidence(graph: Graph) -> dict[str, Any]:
    """Cores with shapes and bonds with ends, as data; no useful sizes if there are too many bonds."""
    from tnmars.graph.lint import has_bounds, useful_size

    bounded = has_bounds(graph)
    terms = []
    for term in graph.terms:
        ends = term.ends()
        terms.append(
            {
                "name": term.name,
                "cores": {core.name: _core(graph, term, core) for core in term.cores},
                "bonds": {
                    bond.name: {
                        "size": bond.size,
                        "useful": useful_size(graph, term, bond.name) if bounded else None,
                        "ends": ends[bond.name],
                    }
                    for bond in term.bonds
                },
            }
        )
    modes = {mode.name: {"size": mode.size, "role": str(mode.role)} for mode in graph.modes}
    return {"name": graph.name, "kind": graph.kind, "modes": modes, "terms": terms}


def _core(graph: Graph, term: Term, core: Core) -> dict[str, Any]:
    data: dict[str, Any] = {"edges": core.edges, "shape": graph.shape(term, core)}
    return data | ({"tied": core.tied} if core.tied else {}) | ({"conj": True} if core.conj else {})


@click.command(epilog="Example: tnmars schema > tnmars.schema.json")
@click.option("--json", is_flag=True, expose_value=False, help="Print JSON; this is always the case.")
def schema() -> None:
    """Print the JSON Schema of spec files, for editors."""
    from importlib.resources import files

    click.echo((files("tnmars.spec") / "schema.json").read_text(encoding="utf-8"), nl=False)
