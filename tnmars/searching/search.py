"""`search_ranks`: from a graph, a score of the user's own and a budget to the ranks that score best."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tnmars.arguments import check_arguments, own
from tnmars.errors import Problem, TnmarsError, listing, nearest
from tnmars.graph import Graph
from tnmars.graph.parts import as_int, is_int
from tnmars.models.bar import bar
from tnmars.models.budget import Budget, amount
from tnmars.models.data import as_float
from tnmars.searching import record
from tnmars.searching.costs import Graphs, Sizes, cost_of, dense_cost, limit_of, named, resized
from tnmars.searching.proposals import METHODS, Proposals
from tnmars.searching.space import Space
from tnmars.searching.value import RankSearch, Trial, best_of


def search_ranks(
    graph: Graph | Mapping[str, Graph],
    score: Callable[[Any, Any], Any],
    *,
    budget: int | str | Budget,
    trials: int = 100,
    method: str = "cross-entropy",
    seed: int = 0,
    start: Mapping[str, Any] | None = None,
    batch: int = 128,
    image: int = 32,
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
    watch: Callable[[Mapping[str, Any]], None] | None = None,
) -> RankSearch:
    """Searches the ranks with the best score within a budget. What is scored, and how, is up to you.

    Every candidate uses the budget up: no bond can be widened by one within it. So a score that never falls when a bond
    gets wider has its best ranks among them. No candidate is scored twice, and the search ends early if there is no
    other. With `"random"`, the logarithms of the ranks are drawn uniformly, then shifted together until they meet the
    budget. With `"cross-entropy"`, the first 10 candidates are those; later ones come from a normal distribution for
    each bond that follows the best 5 trials so far, and is updated after every 10.

    Args:
        graph: A graph whose bonds are as wide as they may become. Or several by name, which share the budget.
        score: Called with a graph and its ranks, a table from bond to size. Returns a number, larger is better: train
            or evaluate what you like. A number that is not finite is a failed trial. With several graphs it gets tables
            of graphs and of ranks, by name.
        budget: What the weights may cost, biases aside: `"10x"`, 5000 (parameters), `"100 kB"` (in torch's default
            dtype) or `"2x macs"`. Ratios refer to the dense weights.
        trials: The maximum number of candidates.
        method: `"cross-entropy"` or `"random"`.
        seed: The seed of all candidates. Your random state is not touched: if `score` draws random numbers, it should
            set a seed itself.
        start: The ranks of the first candidate, for example the best of an earlier search. They must meet the budget,
            but need not use it up.
        batch: The batch for which multiply-adds are planned, if the budget is in macs.
        image: The side of a convolution's input, if the budget is in macs.
        checkpoint: A JSON file that is written after each trial. Call again with the same arguments after an
            interruption: the search goes on with the same candidates. `trials` may be larger then.
        progress: Whether a progress bar is shown; by default on a terminal only.
        watch: Called after each trial with `trial`, `ranks`, `cost`, `score`, `best` and `seconds`.

    Returns:
        `search.best.graph`, `search.best.ranks`, `search.best.score` and `search.trials`. It prints as a table.

    Raises:
        TnmarsError: If an argument is wrong, the budget cannot be met (nothing is scored then), `score` returns no
            number, or all trials fail.
        CheckpointError: If the checkpoint is of another search, or damaged.

    Example:
        >>> import torch, tnmars
        >>> _ = torch.manual_seed(0)
        >>> weight = torch.randn(6, 2) @ torch.randn(2, 40)
        >>> graph = tnmars.families.tt("tensor", free=(6, 8, 5), rank=5)
        >>> def score(graph, ranks):
        ...     return -tnmars.decompose(weight.reshape(6, 8, 5), graph).error
        >>> search = tnmars.search_ranks(graph, score, budget="2x", trials=20)
        >>> search.best.ranks
        {'r1': 2, 'r2': 5}
    """
    check_arguments(search_ranks, locals(), ("graph", "score", "trials", "batch", "image", "seed", "start"))
    trials, seed, batch, image = own((trials, seed, batch, image))
    graphs = _checked(graph, score)
    for name, value, least in (("trials", trials, 1), ("seed", seed, 0), ("batch", batch, 1), ("image", image, 1)):
        if not is_int(value, least):
            raise TnmarsError(f"{name} is {value!r}, but must be a whole number of at least {least}.")
    if method not in METHODS:
        raise TnmarsError(Problem(f"method is {method!r}.", "It must be 'random' or 'cross-entropy'."))
    asked = Budget.parse(budget)
    limit = limit_of(asked, graphs, batch, image)
    most = tuple(bond.size for own in graphs.values() for bond in own.bonds.values())
    space = Space(most, cost_of(graphs, asked.unit, batch, image), limit, grows=asked.unit != "macs")
    _check_limit(space, asked, dense_cost(graphs, asked.unit, batch, image))
    is_one = isinstance(graph, Graph)
    first = None if start is None else _start(graphs, start, space, asked, is_one)
    run = _Run(graphs, score, space, asked, is_one)
    settings: dict[str, Any] = {
        "method": method,
        "seed": seed,
        "budget": str(asked),
        "limit": limit,
        "start": first and list(first),
    }
    if asked.unit == "macs":
        settings |= {"batch": batch, "image": image}
    wanted = record.asked_of(graphs, **settings)
    if checkpoint is not None:
        known = record.read(checkpoint, wanted, most)
        for entry in (known or [])[:trials]:
            run.add(*entry)
        if known is None:
            record.write(checkpoint, wanted, [])
    proposals = Proposals(space, method, seed, first)
    with bar("searching", trials, progress) as advance:
        while len(run.trials) < trials:
            sizes = proposals.next(run.past)
            if sizes is None:
                break
            began = time.perf_counter()
            run.add(sizes, run.score(sizes), time.perf_counter() - began)
            if checkpoint is not None:
                record.write(checkpoint, wanted, run.entries)
            run.tell(watch)
            advance(len(run.trials), run.words)
    run.check()
    return RankSearch(tuple(run.trials), method, str(asked), asked.unit, limit, len(run.trials) < trials)


class _Run:
    """The trials of a search so far."""

    def __init__(self, graphs: Graphs, score: Callable[[Any, Any], Any], space: Space, budget: Budget, is_one: bool):
        self.graphs, self.function, self.space, self.budget, self.is_one = graphs, score, space, budget, is_one
        self.trials: list[Trial] = []
        self.entries: list[record.Entry] = []

    @property
    def past(self) -> list[tuple[Sizes, float]]:
        return [(sizes, score) for sizes, score, _ in self.entries]

    def score(self, sizes: Sizes) -> float:
        """What the user's function returns for some sizes. Raises `TnmarsError` if it is not a number."""
        given = self.function(*self._given(sizes))
        try:
            return as_float(given)
        except TypeError:
            text = f"score returned a {type(given).__name__}, but must return a number; larger is better."
            raise TnmarsError(Problem(text, "Return a float, or a tensor with one entry.")) from None

    def add(self, sizes: Sizes, score: float, seconds: float) -> None:
        """Adds a trial."""
        graph, ranks = self._given(sizes)
        self.trials.append(Trial(len(self.trials), graph, ranks, float(self.space.cost(sizes)), score, seconds))
        self.entries.append((sizes, score, seconds))

    def _given(self, sizes: Sizes) -> tuple[Any, Any]:
        """The graph and the ranks for some sizes, or tables of them by name; new ones for each call."""
        ranks = named(self.graphs, sizes)
        graphs = {name: resized(graph, ranks[name]) for name, graph in self.graphs.items()}
        return (graphs[""], ranks[""]) if self.is_one else (graphs, ranks)

    def tell(self, watch: Callable[[Mapping[str, Any]], None] | None) -> None:
        """Shows the last trial to the user's own function."""
        if watch is not None:
            last = self.trials[-1]
            best = None if all(trial.is_failed for trial in self.trials) else best_of(self.trials).score
            own = {name: getattr(last, name) for name in ("ranks", "cost", "score", "seconds")}
            watch({"trial": last.number, **own, "best": best})

    @property
    def words(self) -> str:
        """The best trial so far, in a few words."""
        if all(trial.is_failed for trial in self.trials):
            return "no trial has a finite score"
        best = best_of(self.trials)
        return f"best: ranks {best.words}, {amount(best.cost, self.budget.unit)}, score {best.score:.5g}"

    def check(self) -> None:
        """Raises `TnmarsError` if all trials failed."""
        if all(trial.is_failed for trial in self.trials):
            first = self.trials[0]
            what = "the only trial" if len(self.trials) == 1 else f"all {len(self.trials):,} trials"
            text = f"{what} failed: score returned no finite number."
            hint = f"The first trial, with ranks {first.words}, has the score {first.score}. Look for NaN in your data."
            raise TnmarsError(Problem(text, hint))


def _checked(given: object, score: object) -> dict[str, Graph]:
    """The graphs by name; a single one has an empty name. Raises `TnmarsError`."""
    if not callable(score):
        text = f"score is a {type(score).__name__}, but must be a function of a graph and its ranks."
        raise TnmarsError(Problem(text, "It returns a number, larger is better."))
    graphs = {"": given} if isinstance(given, Graph) else given
    if not isinstance(graphs, Mapping) or not all(
        isinstance(name, str) and isinstance(each, Graph) for name, each in graphs.items()
    ):
        what = f"a {type(given).__name__}"
        if isinstance(given, Mapping):
            what = "a table with other entries"
        text = f"graph is {what}, but must be a tnmars.Graph, or a table of graphs by name."
        raise TnmarsError(
            Problem(text, "tnmars.load reads a spec file, and a compiled layer has its graph: layer.graph.")
        )
    if not any(each.bonds for each in graphs.values()):
        text = "the graph has no bond" if isinstance(given, Graph) else "the graphs have no bond"
        raise TnmarsError(f"{text}, so there are no ranks to search.")
    return dict(graphs)


def _check_limit(space: Space, budget: Budget, dense: int) -> None:
    """Raises `TnmarsError` if even the smallest ranks do not meet the budget."""
    if space.fits(space.least):
        return
    least = space.cost(space.least)
    planned = ", as planned for speed" if budget.unit == "macs" else ""
    ratio = f", {dense / least:.3g}x" if dense else ""
    text = f"the budget of {budget} cannot be met: with all ranks 1 the weights have {amount(least, budget.unit)}"
    raise TnmarsError(Problem(f"{text}{ratio}{planned}. Nothing was scored.", "Ask for less."))


def _start(graphs: Graphs, given: object, space: Space, budget: Budget, is_one: bool) -> Sizes:
    """The ranks that a user starts with, as sizes of all bonds. Raises `TnmarsError`."""
    shape = "{'r1': 4, ...}" if is_one else "{'layer': {'r1': 4, ...}, ...}"
    fix = f"Give the rank of every bond, {shape}, such as the best.ranks of another search."
    tables = {"": given} if is_one else given
    if not isinstance(tables, Mapping) or not all(isinstance(own, Mapping) for own in tables.values()):
        raise TnmarsError(Problem(f"start is {given!r}, but must be a table of ranks.", fix))
    bonds = {(name, bond): edge.size for name, graph in graphs.items() for bond, edge in graph.bonds.items()}
    ranks = {(name, bond): size for name, own in tables.items() for bond, size in own.items()}
    problems = []
    for place, size in ranks.items():
        if place not in bonds:
            known = [bond for name, bond in bonds if name == place[0]]
            hint = f"Bonds: {listing(known)}.{nearest(str(place[1]), known)}"
            problems.append(Problem(f"start names {_shown(*place)}, which the graph does not have.", hint))
        elif not is_int(as_int(size), 1) or size > bonds[place]:
            text = f"the rank of {_shown(*place)} in start is {size!r}, but must be from 1 to {bonds[place]:,}."
            problems.append(Problem(text))
    missing = [_shown(*place) for place in bonds if place not in ranks]
    if missing:
        problems.append(Problem(f"start has no rank for {listing(missing)}.", fix))
    if problems:
        raise TnmarsError(problems)
    sizes = tuple(int(ranks[place]) for place in bonds)
    if not space.fits(sizes):
        cost, limit = (amount(value, budget.unit) for value in (space.cost(sizes), space.limit))
        raise TnmarsError(f"the ranks of start cost {cost}, but the budget of {budget} allows {limit}.")
    return sizes


def _shown(name: str, bond: object) -> str:
    return f"bond '{bond}' of '{name}'" if name else f"bond '{bond}'"
