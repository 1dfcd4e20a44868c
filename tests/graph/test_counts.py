"""Counts: every figure of the MARS paper to the printed digit, and laws that hold for any graph.

Shapes come from `tnmars.graph.factor` wherever the paper's code has them from its heuristics; the rest is given.
"""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given, settings
from strategies import cases, graphs

from tnmars import Count, count, factor, factor_up, families
from tnmars.graph import Graph
from tnmars.graph.counts import total

BARE = {"bias": False}


# --- 2FC-Net on MNIST ------------------------------------------------------------------------------------------------


def two_layers(**first: object) -> list[Graph]:
    """784-625-10; the keywords are the ranks of the first layer."""
    shape = (7, 4, 7, 4)  # the paper's own order: no heuristic gives it
    assert sorted(shape) == sorted(factor(784, 4))
    return [
        families.tt("linear", inputs=shape, outputs=factor(625, 4), **first),
        families.tt("linear", inputs=factor(625, 2), outputs=factor(10, 2, order="descending"), rank=20),
    ]


def test_two_layer_net() -> None:
    first, second = map(count, two_layers(rank=20))
    assert first == Count(cores=23100, dense=490000, other=625)
    assert f"{first.compression:.4f}" == "21.2121"
    assert second == Count(cores=3500, dense=6250, other=10)
    assert f"{second.compression:.4f}" == "1.7857"
    both = total(two_layers(rank=20))
    assert both == first + second == Count(cores=26600, dense=496250, other=635)
    assert f"{both.compression:.4f}" == "18.6560"
    assert (both.dense + both.other, both.cores + both.other) == (496885, 27235)
    assert f"{both.compression_with_other:.4f}" == "18.2444"


def test_two_layer_net_at_the_ranks_it_learned() -> None:
    first = two_layers(ranks=(4, 3, 4))[0]
    assert [prod(shape) for shape in first.cores.values()] == [140, 240, 420, 80]
    assert count(first).cores == 880
    assert f"{count(first).compression:.2f}" == "556.82"


RUNS = [  # ranks of layer 1, rank of layer 2, compression that the authors' notebooks print
    ((5, 5, 3), 8, "150.8"),
    ((4, 3, 3), 10, "158.2"),
    ((5, 5, 4), 14, "109.4"),
    ((4, 8, 5), 8, "115.2"),
    ((3, 3, 4), 5, "216.5"),
    ((6, 6, 5), 5, "138.4"),
    ((2, 4, 2), 4, "263.6"),
    ((1, 2, 4), 6, "234.4"),
]


@pytest.mark.parametrize(("ranks", "rank", "printed"), RUNS)
def test_two_layer_net_in_the_notebooks(ranks: tuple[int, ...], rank: int, printed: str) -> None:
    first = two_layers(ranks=ranks)[0]
    second = families.tt("linear", inputs=(25, 25), outputs=(5, 2), rank=rank)
    assert f"{total([first, second]).compression_with_other:.1f}" == printed


# --- LeNet-5 ---------------------------------------------------------------------------------------------------------

LENET = {"conv1": 20 * 25, "conv2": 50 * 20 * 25, "fc1": 800 * 500, "fc2": 500 * 10}
UNTOUCHED = LENET["conv1"] + LENET["fc2"]


def lenet(options: dict[str, object]) -> list[Graph]:
    """The two layers that are decomposed, at the paper's start ranks 20, 20 and 100."""
    conv = {"inputs": {"c": 20}, "outputs": {"o": 50}, "kernel": {"kh": 5, "kw": 5}}
    return [
        families.tucker2("conv", **conv, ranks=(20, 20), options=options),
        families.lowrank("linear", inputs=(800,), outputs=(500,), rank=100, options=options),
    ]


def test_lenet() -> None:
    conv, dense = map(count, lenet({}))
    assert conv == Count(cores=11400, dense=25000, other=50)
    assert dense == Count(cores=130000, dense=400000, other=500)
    assert (LENET["conv2"], LENET["fc1"]) == (conv.dense, dense.dense)
    assert sum(LENET.values()) == 430500
    assert UNTOUCHED == 5500
    assert f"{UNTOUCHED / sum(LENET.values()):.3%}" == "1.278%"
    assert f"{(UNTOUCHED + 580) / (sum(LENET.values()) + 580):.2%}" == "1.41%"


def test_lenet_without_biases() -> None:
    net = total(lenet(BARE), other=UNTOUCHED)
    assert (net.dense + net.other, net.cores + net.other) == (430500, 146900)
    assert f"{net.compression_with_other:.4f}" == "2.9306"


def test_lenet_with_biases() -> None:
    net = total(lenet({}), other=UNTOUCHED + 20 + 10)
    assert (net.dense + net.other, net.cores + net.other) == (431080, 147480)
    assert f"{net.compression_with_other:.4f}" == "2.9230"


# --- ResNet-110 ------------------------------------------------------------------------------------------------------

STEM, FC, NORM, SHORTCUT, SHORTCUT_NORM = 432, 640 + 10, 8096, 2560, 192
STAGES = (82944, 327168, 1308672)
ALIKE = 35
"""Convolutions of equal width in a stage; the one before them doubles the channels and stays dense."""


def naive(channels: int, ways: int) -> Graph:
    sides = factor(channels, ways, order="descending")
    taps = {"kernel": {"k": 9}, "kernel_size": (3, 3)}
    return families.tt_naive("conv", inputs=sides, outputs=sides, **taps, rank=20, options=BARE)


def proper(channels: int, ways: int) -> Graph:
    taps = {"kernel_size": (3, 3)}
    sides = {"patch": factor(9 * channels, ways), "outputs": factor(channels, ways)}
    return families.tt("conv", **sides, **taps, rank=20, options=BARE)


CONVS = [  # convolution, shape of its modes, parameters, dense
    (naive(32, 2), (8, 4, 9, 8, 4), 6740, 9216),
    (naive(64, 3), (4, 4, 4, 9, 4, 4, 4), 8260, 36864),
    (proper(32, 5), (2, 3, 3, 4, 4, 2, 2, 2, 2, 2), 8240, 9216),
    (proper(64, 6), (2, 2, 3, 3, 4, 4, 2, 2, 2, 2, 2, 2), 9840, 36864),
]


@pytest.mark.parametrize(("graph", "shape", "cores", "dense"), CONVS)
def test_resnet_convolution(graph: Graph, shape: tuple[int, ...], cores: int, dense: int) -> None:
    assert tuple(mode.size for mode in graph.modes) == shape
    assert count(graph) == Count(cores=cores, dense=dense)


def resnet(make: object, ways: tuple[int, int], *, norm: bool = True, projected: bool = True) -> Count:
    """ResNet-110 with the equal convolutions of stages 2 and 3 replaced by what `make(channels, ways)` gives."""
    replaced = [make(32, ways[0])] * ALIKE + [make(64, ways[1])] * ALIKE
    weights = STEM + sum(STAGES) + FC + projected * (SHORTCUT + norm * SHORTCUT_NORM) + norm * NORM
    return total(replaced, other=weights - sum(count(graph).dense for graph in replaced))


RESNETS = [
    (naive, (2, 3), {}, 1730714, 642914, "2.6920"),
    (proper, (5, 6), {}, 1730714, 750714, "2.3054"),
    (naive, (2, 3), {"norm": False}, 1722426, 634626, "2.7141"),
    (proper, (5, 6), {"norm": False}, 1722426, 742426, "2.3200"),
    (naive, (2, 3), {"projected": False}, 1727962, 640162, "2.6993"),
    (proper, (5, 6), {"projected": False}, 1727962, 747962, "2.3102"),
]


@pytest.mark.parametrize(("make", "ways", "settings", "before", "after", "ratio"), RESNETS)
def test_resnet(
    make: object, ways: tuple[int, int], settings: dict[str, bool], before: int, after: int, ratio: str
) -> None:
    net = resnet(make, ways, **settings)
    assert (net.dense + net.other, net.cores + net.other) == (before, after)
    assert f"{net.compression_with_other:.4f}" == ratio


def test_resnet_stages_are_the_convolutions_they_are_made_of() -> None:
    plain, doubling = [9 * width * width for width in (16, 32, 64)], [9 * width * width // 2 for width in (32, 64)]
    stages = (36 * plain[0], doubling[0] + ALIKE * plain[1], doubling[1] + ALIKE * plain[2])
    assert stages == STAGES
    assert [count(naive(32, 2)).dense, count(naive(64, 3)).dense] == plain[1:]


# --- embeddings of the sentiment models ------------------------------------------------------------------------------


def table(vocab: int, ways: int, ranks: tuple[int, ...] | int, order: str = "mixed") -> Graph:
    """A word table of width 256 as a tensor train, shaped by the heuristics."""
    sizes = {"rank": ranks} if isinstance(ranks, int) else {"ranks": ranks}
    shape = {"lookup": factor_up(vocab, ways, order=order), "outputs": factor(256, ways, order=order)}
    return families.tt("embedding", **shape, vocab=vocab, **sizes)


IMDB, SST = 25000, 17200
TABLES = [  # vocabulary, cores, ranks, shape of the rows and of the width, parameters, compression
    (IMDB, 6, 16, (5, 5, 5, 6, 5, 8), (2, 2, 2, 4, 2, 4), 14496, "441.50"),
    (IMDB, 6, (8, 11, 15, 16, 16), (5, 5, 5, 6, 5, 8), (2, 2, 2, 4, 2, 4), 11442, "559.34"),
    (SST, 3, 16, (24, 25, 30), (4, 8, 8), 56576, "77.83"),
    (SST, 6, 16, (4, 5, 5, 6, 5, 6), (2, 2, 2, 4, 2, 4), 14336, "307.14"),
    (SST, 4, 16, (10, 12, 10, 15), (4, 4, 4, 4), 24128, "182.49"),
    (SST, 4, (6, 14, 14), (10, 12, 10, 15), (4, 4, 4, 4), 12952, "339.96"),
]


@pytest.mark.parametrize(("vocab", "ways", "ranks", "rows", "width", "cores", "ratio"), TABLES)
def test_table(
    vocab: int,
    ways: int,
    ranks: tuple[int, ...] | int,
    rows: tuple[int, ...],
    width: tuple[int, ...],
    cores: int,
    ratio: str,
) -> None:
    graph = table(vocab, ways, ranks)
    assert tuple(mode.size for mode in graph.modes) == rows + width
    assert count(graph) == Count(cores=cores, dense=vocab * 256)
    assert f"{count(graph).compression:.2f}" == ratio


@pytest.mark.parametrize(
    ("vocab", "ways", "ranks", "ascending", "descending"),
    [(IMDB, 6, (8, 11, 15, 16, 16), "548.60", "700.37"), (SST, 4, (6, 14, 14), "317.97", "344.22")],
)
def test_only_mixed_shapes_give_the_printed_figures(
    vocab: int, ways: int, ranks: tuple[int, ...], ascending: str, descending: str
) -> None:
    assert f"{count(table(vocab, ways, ranks, 'ascending')).compression:.2f}" == ascending
    assert f"{count(table(vocab, ways, ranks, 'descending')).compression:.2f}" == descending


def test_which_vocabularies_fit_the_printed_figures() -> None:
    def fits(vocab: int) -> bool:
        found = [count(table(vocab, *shape)).compression for shape in ((3, 16), (6, 16), (4, (6, 14, 14)))]
        return [f"{ratio:.0f}" for ratio in found] == ["78", "307", "340"]

    assert [vocab for vocab in range(17150, 17250) if fits(vocab)] == list(range(17177, 17220))


# --- laws ------------------------------------------------------------------------------------------------------------


@settings(max_examples=cases(1000))
@given(graphs(terms=3, least_terms=0))
def test_counts_are_what_a_recount_gives(graph: Graph) -> None:
    size = {mode.name: mode.size for mode in graph.modes}
    parameters = 0
    for term in graph.terms:
        bond = {edge.name: edge.size for edge in term.bonds}
        for core in term.cores:
            entries = 1
            for edge in core.edges:
                entries *= bond[edge] if edge in bond else size[edge]
            parameters += entries
    found = count(graph)
    assert found.cores == parameters
    assert found.dense == prod(graph.dense_shape)
    outputs = graph.dense_shape[1] * graph.groups if graph.kind == "conv_transpose" else graph.dense_shape[0]
    assert found.other == (outputs if dict(graph.options).get("bias", graph.rules.has_bias) else 0)


@settings(max_examples=cases(1000))
@given(graphs())
def test_dense_is_the_product_of_the_modes_but_for_padding(graph: Graph) -> None:
    modes = prod(mode.size for mode in graph.modes)
    if graph.features:
        assert count(graph).dense < modes
    else:
        assert count(graph).dense == modes


def test_nothing_left() -> None:
    assert Count(dense=6).compression == float("inf")
    assert Count(dense=6).compression_with_other == float("inf")
    assert Count(dense=6, other=2).compression_with_other == 4.0


def test_total_of_no_layer() -> None:
    assert total([]) == Count()
    assert total([], other=7) == Count(other=7)
