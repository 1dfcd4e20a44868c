"""A graph as text for Graphviz: cores as nodes, bonds as undirected edges, modes as edges to their labels.

Terms are clusters and hyperedges are points. Graphviz itself is not needed to write the text.
"""

from __future__ import annotations

from collections.abc import Iterator

from tnmars.arguments import check_arguments
from tnmars.draw.palette import ROLE_COLORS
from tnmars.draw.text import signature
from tnmars.graph import Graph, Term


def dot(graph: Graph) -> str:
    """The graph in the DOT language.

    >>> from tnmars.graph import Core, Edge, Role
    >>> modes = (Edge("i", 8, Role.IN), Edge("o", 6, Role.OUT))
    >>> cores = (Core("A", ("i", "r")), Core("B", ("r", "o")))
    >>> text = dot(Graph("linear", modes, (Term("main", (Edge("r", 2),), cores),)))
    >>> [line.strip() for line in text.splitlines() if "--" in line][0]
    '"main.core.A" -- "main.core.B" [label="r 2"];'
    """
    check_arguments(dot, locals())
    title = ": ".join(filter(None, (graph.name, signature(graph))))
    # Of Graphviz's programs neato draws best, but of the spring layouts only fdp supports clusters.
    engine = "fdp" if len(graph.terms) > 1 else "neato"
    lines = [
        "// Written by tnmars",
        f"graph {_quoted(graph.name or 'graph')} {{",
        f'  graph [label={_quoted(title)}, labelloc="t", fontname="Helvetica", layout="{engine}", overlap="false"];',
        '  node [shape="ellipse", style="filled", fillcolor="#e6eefb", color="#2f5fa8", fontname="Helvetica"];',
        '  edge [color="#5b6675", fontname="Helvetica", fontsize="11"];',
    ]
    for term in graph.terms:
        if len(graph.terms) > 1:
            lines += [f"  subgraph {_quoted('cluster.' + term.name)} {{", f"    label={_quoted(term.name)};"]
            lines += [f"    {line}" for line in _term(graph, term)]
            lines.append("  }")
        else:
            lines += [f"  {line}" for line in _term(graph, term)]
    return "\n".join([*lines, "}"]) + "\n"


def _term(graph: Graph, term: Term) -> Iterator[str]:
    ends = term.ends()

    def core(name: str) -> str:
        return _quoted(f"{term.name}.core.{name}")

    for part in term.cores:
        yield f"{core(part.name)} [label={_quoted(part.label)}];"
    for bond in term.bonds:
        label, joined = _quoted(f"{bond.name} {bond.size}"), ends[bond.name]
        style = ', style="dashed"' if bond.size == 1 else ""
        if len(joined) == 2:
            yield f"{core(joined[0])} -- {core(joined[1])} [label={label}{style}];"
            continue
        point = _quoted(f"{term.name}.bond.{bond.name}")
        yield f'{point} [shape="point", width="0.1", xlabel={label}];'
        yield from (f"{point} -- {core(name)}{f' [{style[2:]}]' if style else ''};" for name in joined)
    for mode in graph.modes:
        color = ROLE_COLORS[mode.role][0]
        style = ', style="dotted"' if mode.name in graph.shared else ""
        for name in ends[mode.name]:
            tip = _quoted(f"{term.name}.mode.{mode.name}.{name}")
            label = _quoted(f"{mode.name} {mode.size}")
            yield f'{tip} [shape="plaintext", style="", fontcolor="{color}", label={label}];'
            yield f'{core(name)} -- {tip} [color="{color}"{style}];'


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
