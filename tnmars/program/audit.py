"""Whether a form that was read from a file computes the layer of a graph, and nothing else.

`tnmars.program.program.verify` checks that labels agree from step to step. This module also checks the ends against
the graph: the frame, the cores and inputs with their labels and sizes, that every core is used once, that a label is
summed only after everything that has it is joined, and that the result has the axes of the output.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NoReturn

from tnmars.errors import Problem, TnmarsError
from tnmars.graph import Graph, Role
from tnmars.plan import network as nets
from tnmars.plan.network import BATCH, TOKENS, Labels
from tnmars.plan.steps import Groups, flat
from tnmars.program.backward import has_step
from tnmars.program.base import Instruction
from tnmars.program.emit import emit
from tnmars.program.form import Form, frames
from tnmars.program.instructions import Conv, Fetch, Kernel, Plus, Receive, Repeat, Weight
from tnmars.program.program import verify
from tnmars.program.transposed import ConvTranspose

VARIABLE = re.compile(r"(?:[a-z]\d*)?v\d+(?:_raw)?|s\d+|w", re.ASCII)
"""The names that lowering gives to values; the emitted code has other variables too."""
FIX = "The file was changed, or belongs to another graph or version. Leave the plan out to have it planned again."


def wrong(text: str) -> NoReturn:
    """Refuses a plan."""
    raise TnmarsError(Problem(text, FIX))


def audit(form: Form, graph: Graph) -> None:
    """Raises `TnmarsError` if a form is not one of the graph."""
    _Audit(form, graph).run()


@dataclass(frozen=True)
class _Made:
    """What a value is made of: names of cores and of inputs."""

    cores: frozenset[str] = frozenset()
    inputs: frozenset[str] = frozenset()

    def __or__(self, other: _Made) -> _Made:
        return _Made(self.cores | other.cores, self.inputs | other.inputs)

    def __and__(self, other: _Made) -> bool:
        return bool(self.cores & other.cores or self.inputs & other.inputs)


class _Audit:
    def __init__(self, form: Form, graph: Graph):
        self.form, self.graph, self.program = form, graph, form.program
        self.sizes: dict[str, int] = {}
        self.fetched: dict[tuple[str, ...], Labels] = {}
        self.repeated: dict[tuple[str, ...], Labels] = {}
        for terms in (*nets.groups(graph), *((term,) for term in graph.terms)):
            self.sizes |= nets.sizes_of(graph, terms)
            self.fetched |= {leaf.names: leaf.labels for leaf in nets.core_leaves(graph, terms)}
            self.repeated |= {leaf.names: leaf.repeated for leaf in nets.core_leaves(graph, terms)}
        self.data = _data_labels(graph)
        has_input = not (form.frame.strides or form.frame.dense)
        leaves = nets.layer_network(graph, graph.terms[:1], 1).leaves if has_input else ()
        self.inputs = {leaf.names[0]: leaf for leaf in leaves if not leaf.is_core}
        modes = [mode.name for mode in graph.modes]
        looked_up = [label for label, _, _ in form.frame.strides]
        self.kept = frozenset(modes if form.frame.dense else (*looked_up, *flat(nets.output_axes(graph))))
        self.taps = dict(zip(nets.flat_modes(graph, Role.KERNEL), graph.tap_groups, strict=False))
        self.terms = {name: name.rpartition(".")[0] for name in graph.nodes}

    def run(self) -> None:
        """Checks everything, from the outside to the inside."""
        if self.form.frame not in frames(self.graph):
            wrong("the frame of the plan is not one that the graph has.")
        frame = self.form.frame
        is_flat = not (self.graph.inputs or self.graph.kernel_size or frame.strides or frame.dense)
        if self.form.chunk < 0 or (self.form.chunk and not is_flat):
            wrong(f"a chunk of {self.form.chunk} does not go with the layer.")
        if self.form.keep < 0:
            wrong(f"the plan keeps {self.form.keep} rows.")
        self._names()
        self._labels()
        for instruction in self.program.instructions:
            self._place(instruction)
        try:
            verify(self.program)
        except (AssertionError, LookupError) as error:
            wrong(f"the program of the plan is wrong: {error or 'its result is not made'}")
        made = self._sums()
        everything = _Made(frozenset(self.graph.nodes), frozenset(self.inputs))
        if made[self.program.result] != everything:
            wrong("the result of the plan is not made of all cores and inputs.")
        self._result()
        if self.form.is_planned and not has_step(self.program, self.form.frame):
            wrong("the plan has a backward pass of its own, but there is none for its steps.")
        emit(self.program, self.form.frame)

    def _names(self) -> None:
        names = [instruction.out for instruction in self.program.instructions]
        for name in (*names, self.program.result):
            if not VARIABLE.fullmatch(name):
                wrong(f"{name!r} is not a name that a value has.")
        if len(set(names)) < len(names):
            wrong("a value of the plan is made twice.")

    def _labels(self) -> None:
        """Every label is one of the graph, with its size; the lengths of data axes are nominal."""
        given = dict(self.program.sizes)
        if len(given) < len(self.program.sizes):
            wrong("a label of the plan has two sizes.")
        for label, size in given.items():
            if label in self.data:
                if size < 0:
                    wrong(f"data axis '{label}' has length {size}.")
            elif self.sizes.get(label) != size:
                known = f"the graph has {self.sizes[label]}" if label in self.sizes else "the graph has no such edge"
                wrong(f"edge {label!r} has size {size} in the plan, but {known}.")
        if self.program.dynamic - self.data or (self.data & given.keys()) - self.program.dynamic:
            wrong("the data axes of the plan are not those of the graph.")
        for instruction in self.program.instructions:
            for label in (label for axis in instruction.axes for label in axis):
                if label not in given:
                    wrong(f"{instruction.out} has edge {label!r}, whose size the plan does not say.")

    def _place(self, instruction: Instruction) -> None:
        """What an instruction takes from outside, and where it stands."""
        if instruction.takes_gates:
            wrong(f"{instruction.out} multiplies a gate in, but a plan must not contain gates.")
        own = flat(instruction.axes)
        if isinstance(instruction, Fetch):
            labels = self.fetched.get(instruction.cores)
            if labels is None:
                wrong(f"{instruction.out} takes {' '.join(instruction.cores)!r}, but the graph has no such cores.")
            kept = tuple(label for label in labels if label in own)
            lost = [label for label in labels if label not in own]
            is_flat = all(len(axis) == 1 for axis in instruction.axes)
            every = tuple(label for label in self.repeated[instruction.cores] if label in own)
            if instruction.repeated != (every if len(set(every)) < len(every) else ()):
                wrong(f"{instruction.out} takes another diagonal of core '{instruction.cores[0]}' than its trace has.")
            if not is_flat or kept != own or self._volume(lost) != 1 or bool(lost) != instruction.has_ones:
                wrong(f"{instruction.out} takes core '{instruction.cores[0]}' with other axes than it has.")
            if instruction.conj != (instruction.cores[0] in self.graph.conjugated):
                wrong(f"{instruction.out} takes core '{instruction.cores[0]}' with a conjugate that the graph has not.")
        if isinstance(instruction, Receive):
            leaf = self.inputs.get(instruction.name)
            if leaf is None or not self._is_same(instruction.axes, leaf.axes):
                wrong(f"{instruction.out} takes input {instruction.name!r}, which is not an input of the layer.")
        rows = [label for label, _, _ in self.form.frame.strides]
        if any(label not in rows for label in instruction.looks_up):
            wrong(f"{instruction.out} looks up modes that the layer does not look up.")
        if isinstance(instruction, Kernel) and min(instruction.taps, default=1) < 1:
            wrong(f"{instruction.out} is a kernel with {list(instruction.taps)} taps.")
        if isinstance(instruction, Weight) and not self.form.frame.dense:
            wrong(f"{instruction.out} is the dense weight, which nothing takes.")

    def _sums(self) -> Mapping[str, _Made]:
        """What each value is made of; checks that nothing is used twice and that sums are not taken too early."""
        made: dict[str, _Made] = {}
        axes = self.program.axes()
        kernels = {entry.out: entry for entry in self.program.instructions if isinstance(entry, Kernel)}
        for instruction in self.program.instructions:
            read = [made[name] for name in instruction.reads]
            if isinstance(instruction, Plus):
                self._plus(instruction, *read)
            elif len(read) == 2:
                self._times(instruction, *read)
            made[instruction.out] = _Made(frozenset(instruction.takes_cores), frozenset(instruction.takes_inputs))
            for part in read:
                made[instruction.out] |= part
            if isinstance(instruction, Repeat):
                self._repeat(instruction)
            if isinstance(instruction, Conv):
                self._conv(instruction, axes[instruction.source], kernels[instruction.weight])
            for label in instruction.summed(self.program.read_by(instruction)):
                self._summed(instruction, label, made[instruction.out])
        return made

    def _times(self, instruction: Instruction, left: _Made, right: _Made) -> None:
        """Only parts of one term are multiplied, or of terms that are stacked."""
        one, two = ({self.terms[core] for core in part.cores} for part in (left, right))
        if left & right or (one and two and one != two):
            wrong(f"{instruction.out} multiplies a core or an input twice, or parts of different terms.")

    def _plus(self, instruction: Plus, left: _Made, right: _Made) -> None:
        """Only complete terms are added."""
        for part in (left, right):
            terms = {self.terms[core] for core in part.cores}
            if {core for core, term in self.terms.items() if term in terms} != part.cores:
                wrong(f"{instruction.out} adds a part of a term.")
        if left.cores & right.cores or left.inputs != right.inputs or left.inputs != self.inputs.keys():
            wrong(f"{instruction.out} adds values that are not terms of a sum.")

    def _summed(self, instruction: Instruction, label: str, made: _Made) -> None:
        """A label may be summed once every core of the term and every input that has it is joined."""
        if not instruction.may_sum or label in self.kept:
            wrong(f"{instruction.out} loses edge {label!r}.")
        terms = {self.terms[core] for core in made.cores}
        for entry in self.program.fold:
            cores = entry.takes_cores
            if cores and label in self.fetched[cores]:
                is_joined = not terms or self.terms[cores[0]] in terms
                if is_joined and not made.cores.issuperset(cores):
                    wrong(f"{instruction.out} sums edge {label!r} before core '{cores[0]}' is joined.")
        for name, leaf in self.inputs.items():
            if label in leaf.labels and name not in made.inputs:
                wrong(f"{instruction.out} sums edge {label!r} before input '{name}' is joined.")

    def _repeat(self, instruction: Repeat) -> None:
        """A kernel is repeated for the groups of convolutions alone: summed, it would count several times."""
        kernels = [entry for entry in self.program.instructions if instruction.out in entry.reads]
        names = {entry.out for entry in kernels if isinstance(entry, Kernel)}
        readers = [entry for entry in self.program.instructions if names & set(entry.reads)]
        is_right = len(names) == len(kernels) and self.program.result not in (instruction.out, *names)
        for entry in readers:
            source = self.program.axes()[entry.source] if isinstance(entry, Conv) and entry.source not in names else ()
            is_right = is_right and len(source) > 1 and set(instruction.labels) <= set(source[1])
        if not is_right:
            wrong(f"{instruction.out} is repeated for something else than the groups of a convolution.")

    def _conv(self, instruction: Conv, source: Groups, kernel: Kernel) -> None:
        """The taps of a kernel are those of the spatial axes that act in the convolution."""
        taps = instruction.taps_of(self.program.read_by(instruction))
        if taps and isinstance(instruction, ConvTranspose) != self.graph.rules.is_transposed:
            wrong(f"{instruction.out} is {instruction.word()}, but the layer is of kind {self.graph.kind}.")
        if not taps:
            is_right = not instruction.spatial and kernel.taps == ((1,) if instruction.groups > 1 else ())
            is_flat = len(source) == 3 and (is_right or kernel.taps == (1,))
            if not is_flat and (instruction.spatial or len(source) == 3 or kernel.taps != (1,) * (len(source) - 2)):
                wrong(f"{instruction.out} convolves without taps, but along {list(instruction.spatial)}.")
            return
        acting = tuple(sorted(axis for tap in taps for axis in self.taps.get(tap, (-1,))))
        taps_there = tuple(size if axis in acting else 1 for axis, size in enumerate(self.graph.kernel_size))
        space = tuple((nets.spatial(axis),) for axis in range(len(taps_there)))
        if instruction.spatial != acting or kernel.taps != taps_there or source[2:] != space:
            wrong(f"{instruction.out} convolves along {list(instruction.spatial)}, but its taps are of other axes.")

    def _result(self) -> None:
        """The result has the axes of the output, or is the dense weight in torch's layout."""
        last = self.program.instructions[-1]
        axes = self.program.axes()[self.program.result]
        if not self.form.frame.dense:
            if not self._is_same(axes, nets.output_axes(self.graph)):
                wrong("the result of the plan has other axes than the output.")
            return
        groups, keep, shape = self.graph.weight_axes, self.graph.weight_lengths, self.graph.dense_shape
        if self.form.frame.is_transposed:
            groups, keep, shape = groups[::-1], keep[::-1], shape[::-1]
        if not isinstance(last, Weight) or last.out != self.program.result:
            wrong("the plan does not end with the dense weight.")
        if not self._is_same(axes, groups) or (last.keep, last.shape) != (keep, shape):
            wrong("the dense weight of the plan has another shape than the graph's.")

    def _is_same(self, axes: Groups, expected: Groups) -> bool:
        """Whether axes are the expected ones; labels of size 1 may be left out."""
        if len(axes) != len(expected):
            return False
        given = set(flat(axes))
        return all(
            axis == tuple(label for label in full if label in given)
            and self._volume([label for label in full if label not in given]) == 1
            for axis, full in zip(axes, expected, strict=True)
        )

    def _volume(self, labels: Sequence[str]) -> int:
        return prod(self.sizes.get(label, 0) for label in labels)


def _data_labels(graph: Graph) -> frozenset[str]:
    if graph.is_lookup:
        return frozenset([TOKENS])
    if graph.inputs:
        modes = {mode.name for mode in graph.modes}
        names = {name for operand in graph.inputs for axis in operand.axes for name in axis}
        return frozenset(map(nets.data, names - modes))
    return frozenset([BATCH, *map(nets.spatial, range(len(graph.kernel_size)))])
