"""Timing of close candidates: the model ranks forms, and the clock decides among the best few.

Clear losers drop out after two rounds, and a race has a budget, so that layers which take seconds are tuned in a few of
them. The dense weight is always in the race. For inference with folded cores it wins unless another form is clearly
faster: what is shipped is not slower than torch's own layer. The winner of a training race is also timed
with a planned backward pass, which it takes if that is clearly faster, and then against torch's own layer. Who won with
which ratio is kept by `tnmars.timing.records`, so that equal layers are timed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tnmars.graph import Graph
from tnmars.layer.code import LAYOUTS, MODES, runnable
from tnmars.layer.forward import code_inputs, dense_layer
from tnmars.layer.module import TNModule
from tnmars.layer.torch_state import is_undisturbed
from tnmars.program.backward import has_step
from tnmars.program.choice import Planner, within_memory
from tnmars.program.form import Form, has_weight, peak
from tnmars.timing import records
from tnmars.timing.clock import Action, in_turns, inference, training_step
from tnmars.timing.records import Record

CANDIDATES = 6
"""The number of programs that are raced, each with the chunk size that the model ranks first."""
SIZES = 3
"""The number of other chunk sizes that the winner is raced against."""
HOPELESS = (3.0, 1.6)
"""A form predicted to be this many times slower than the best is not timed: for quick forms, and for slow ones."""
EQUAL = 1.04
"""Times within this factor count as equal; then the form with the smallest peak memory wins."""
BEHIND = 1.5
"""A candidate this many times slower than the fastest after two rounds is dropped."""
SLOW = 0.05
"""A form that takes this many seconds is a slow one."""
STEP_ROUNDS, STEP_BUDGET = 15, 0.1
"""The rounds of a race between a plain step, a planned one and torch's own layer, and the seconds that each one has."""
RATIO_BUDGET = 0.075
"""The seconds that a form and torch's own layer have each, to find their ratio."""
WORTH = 0.95
"""A training step has a planned backward pass if that takes at most this share of the time."""
CLEARLY = 0.97
"""A frozen layer ships another form than the dense weight if it takes at most this share of its time."""

LARGEST = 2.0**26
"""Torch's own layer is not timed if its weight has more entries."""


class Effort(NamedTuple):
    """What a race may take: the largest number of rounds, the number of them that it has whatever its budget, and the
    budget in seconds, which its candidates share."""

    rounds: int
    least: int
    budget: float


PROGRAMS, CHUNKS = Effort(7, 3, 0.3), Effort(3, 2, 0.2)
"""What a race between programs may take, and a race between the chunk sizes of one program, which differ less."""
Place = dict[str, Any]
"""The device and the type of a layer's numbers."""


@dataclass(frozen=True)
class Race:
    """What is timed: a layer's graph, in a mode, on inputs for its emitted code."""

    graph: Graph
    mode: str
    inputs: tuple[Tensor, ...]
    place: Place


def _random_inputs(graph: Graph, batch: int, image: int, place: Place, channels_last: bool) -> tuple[Tensor, ...]:
    flat = replace(graph, options=())  # emitted code takes tokens, not bags of them
    layout = LAYOUTS.get(len(graph.kernel_size)) if channels_last else None
    given = (value.to(place["device"]) for value in code_inputs(flat, batch, image, place["dtype"]))
    return tuple(value if layout is None else value.contiguous(memory_format=layout) for value in given)


def _action(race: Race, form: Form) -> Action:
    """A run of a form with random cores: a training step, inference, or inference with folded cores."""
    made = runnable(form)
    graph, mode, inputs, place = race.graph, race.mode, race.inputs, race.place
    shapes = [graph.cores[graph.nodes[name]] for name in made.cores]
    cores = [torch.randn(shape, **place).requires_grad_(mode == "train") for shape in shapes]
    bias = torch.zeros(graph.out_features, **place).requires_grad_(mode == "train") if graph.has_bias else None

    def run(*given: Tensor) -> Tensor:
        return made.compute(given, bias, cores)

    if mode == "train":
        return training_step(run, inputs, [*cores, *([] if bias is None else [bias])])
    if mode == "infer":
        return inference(run, inputs)
    with torch.no_grad():
        parts = tuple(part.contiguous() for part in made.fold(*cores))
    return inference(lambda *given: made(given, bias, parts), inputs)


def fastest(
    graph: Graph,
    forms: Sequence[Form],
    batch: int,
    mode: str,
    image: int = 32,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    channels_last: bool = False,
    inputs: tuple[Tensor, ...] | None = None,
) -> Form:
    """The form that the clock prefers among the best few by estimate, then among sizes of its chunks.

    It may be called in the middle of a pass: it leaves the random state and autocast alone. While torch traces or
    transforms, or a mode such as `FakeTensorMode` is on, nothing can be timed, and the estimate decides. `inputs` are
    for the emitted code, by default random ones; their layout in memory matters too. In mode `folded`, the dense weight
    is taken unless another form is clearly faster.
    """
    if not _can_time(device):
        return forms[0]
    with _undisturbed(device) as place:
        place["dtype"] = dtype
        given = _random_inputs(graph, batch, image, place, channels_last) if inputs is None else inputs
        race = _race(graph, mode, place, given)
        key = records.key_of(graph, forms, mode, race.inputs, device, dtype)
        known = records.find(key)
        if known is None:
            known = _outcome(race, forms)
            records.keep(key, known)
    return replace(forms[known.winner], is_planned=known.is_planned)


def _can_time(device: torch.device | str | None) -> bool:
    return is_undisturbed() and torch.device(device or "cpu").type != "meta"


def measured_ratio(
    planner: Planner, mode: str, batch: int, *, device: torch.device | str | None, dtype: torch.dtype | None
) -> float | None:
    """The measured time of a tuned plan relative to torch's own layer; None if it was not timed."""
    if not _can_time(device):
        return None
    forms = planner.candidates(mode, batch)
    with _undisturbed(device) as place:
        place["dtype"] = dtype
        inputs = _random_inputs(planner.graph, batch, planner.image, place, planner.channels_last)
    known = records.find(records.key_of(planner.graph, forms, mode, inputs, device, dtype))
    return known.ratio or None if known else None


def measured_ratios(layer: TNModule) -> dict[str, float]:
    """The measured times of a tuned layer at its nominal batch relative to torch's own layer, by mode."""
    if layer.planner.decide is None or layer.is_rebuilt or not layer.graph.terms:
        return {}
    found = {}
    for mode in MODES:
        layer.plan(mode, layer.nominal)  # times it, unless that was done
        ratio = measured_ratio(layer.planner, mode, layer.nominal, device=layer.device, dtype=layer.dtype)
        if ratio is not None:
            found[mode] = ratio
    return found


@contextmanager
def _undisturbed(device: torch.device | str | None) -> Iterator[Place]:
    """While it times, tuning leaves the random state alone and no dtypes are chosen. Gives the device."""
    with torch.random.fork_rng(devices=[]), torch.autocast(torch.device(device or "cpu").type, enabled=False):
        yield {"device": device}


def _race(graph: Graph, mode: str, place: Place, inputs: tuple[Tensor, ...]) -> Race:
    """What is timed, on some inputs. They may come from a pass with other dtypes."""
    given = tuple(value.to(place["dtype"]) if value.is_floating_point() else value for value in inputs)
    return Race(graph, mode, given, place)


def _outcome(race: Race, forms: Sequence[Form]) -> Record:
    """Who wins, and the ratio to torch's own layer."""
    winner = _fastest(race, forms)
    if race.mode == "folded":  # the folded dense weight is torch's own layer
        dense = next((form for form in forms if has_weight(race.graph, form)), None)
        if dense is None:
            return Record(forms.index(winner), 0.0)
        if has_weight(race.graph, winner):
            return Record(forms.index(winner), 1.0)
        ours, theirs = _times(race, [winner, dense], inf, PROGRAMS)
        chosen = winner if ours <= CLEARLY * theirs else dense
        return Record(forms.index(chosen), ours / theirs if chosen is winner else 1.0)
    is_cpu = torch.device(race.place["device"] or "cpu").type == "cpu"
    if race.mode == "train" and is_cpu and has_step(winner.program, winner.frame):
        return _stepped(race, winner, forms.index(winner))
    return Record(forms.index(winner), _ratio(race, winner))


def _stepped(race: Race, form: Form, place: int) -> Record:
    """The record of a form in training: with its planned backward pass if that is clearly faster.

    Medians decide: what a step pays for fresh memory, which kept buffers avoid, differs from run to run. It depends on
    what else runs, so torch's own layer takes turns with the two, as other layers of a model do.
    """
    dense = _dense_action(race)
    actions = [_action(race, form), _action(race, replace(form, is_planned=True)), *([] if dense is None else [dense])]
    plain, own, *unit = in_turns(actions, rounds=STEP_ROUNDS, budget=STEP_BUDGET, least=2, result=median)
    is_planned = own <= WORTH * plain
    return Record(place, (own if is_planned else plain) / unit[0] if unit else 0.0, is_planned)


def _ratio(race: Race, form: Form) -> float:
    """The time of a form relative to torch's own layer, in turns; 0 if torch has none, or it is too large."""
    theirs = _dense_action(race)
    if theirs is None:
        return 0.0
    actions = [_action(race, form), theirs]
    ours, unit = in_turns(actions, rounds=4, budget=RATIO_BUDGET, least=1, device=race.place["device"])
    return ours / unit


def _dense_action(race: Race) -> Action | None:
    """A run of torch's own layer: a training step, or inference."""
    graph = replace(race.graph, options=()) if race.graph.is_lookup else race.graph  # tokens, not bags of them
    layer = dense_layer(graph, LARGEST)
    if layer is None:
        return None
    is_trained = race.mode == "train"
    weight = torch.randn(graph.dense_shape, **race.place).requires_grad_(is_trained)
    bias = torch.zeros(graph.out_features, **race.place).requires_grad_(is_trained) if graph.has_bias else None
    if not is_trained:
        return inference(lambda *given: layer(weight, bias, *given), race.inputs)
    trained = [weight, *([] if bias is None else [bias])]
    return training_step(lambda *given: layer(weight, bias, *given), race.inputs, trained)


def _fastest(race: Race, forms: Sequence[Form]) -> Form:
    dense = [form for form in forms if has_weight(race.graph, form)]
    best: dict[object, Form] = {}
    for form in forms:
        is_close = form.cost <= HOPELESS[forms[0].cost > SLOW] * forms[0].cost
        # in every pass the weight is made anew, which takes most of the time in either layout: the estimate decides
        if is_close and (race.mode == "folded" or form not in dense[1:]):
            best.setdefault(_shape(form), form)
    racing = list(best.values())[:CANDIDATES]
    if dense and not any(has_weight(race.graph, form) for form in racing):
        racing.append(dense[0])
    winner = _first(race, racing, PROGRAMS)
    others = [form for form in forms if _shape(form) == _shape(winner) and form is not winner]
    return _first(race, [winner, *others[:SIZES]], CHUNKS)


def _shape(form: Form) -> object:
    """What forms that differ only in their chunk size have in common."""
    return replace(form.program, sizes=()), form.frame


def _first(race: Race, forms: Sequence[Form], effort: Effort) -> Form:
    """The fastest form; of equally fast ones, that with the smallest peak memory."""
    if len(forms) == 1:
        return forms[0]
    times = _times(race, forms, BEHIND, effort)
    first = [form for form, took in zip(forms, times, strict=True) if took <= EQUAL * min(times)]
    return min(first, key=lambda form: peak(form))


def _times(race: Race, forms: Sequence[Form], behind: float, effort: Effort) -> list[float]:
    """The seconds of each form, measured in turns."""
    actions = [_action(race, form) for form in forms]
    rounds, least, budget = effort
    share = budget / len(actions)
    return in_turns(actions, rounds=rounds, budget=share, least=least, behind=behind, device=race.place["device"])


def fastest_frozen(
    graph: Graph,
    forms: Sequence[Form],
    batch: int,
    image: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    channels_last: bool = False,
    inputs: tuple[Tensor, ...] | None = None,
) -> Form:
    """The form that is fastest at inference with folded cores, among those whose memory is acceptable.

    The dense weight, if it is among them, is timed whatever its estimate, and taken unless another is clearly faster.
    """
    close = within_memory(graph, forms, batch, image)
    place: Place = {"device": device, "dtype": dtype}
    return fastest(graph, close, batch, "folded", image, channels_last=channels_last, inputs=inputs, **place)
