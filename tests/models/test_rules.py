"""Patterns on the names of layers: order, globs and regular expressions, what they map to, and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import tnmars
from tnmars import families
from tnmars.errors import PatternError, TnmarsError
from tnmars.models.rules import candidates, matched
from tnmars.models.torch_layers import describe

NAMES = ["conv1", "layer1.0.conv", "layer1.1.conv", "layer2.0.conv", "head.fc1", "head.fc2"]


def chosen(rules: dict[str, object]) -> dict[str, object]:
    """What each layer is mapped to."""
    return {name: target for name, (_, target) in matched(rules, NAMES, {}).items()}


def test_the_first_match_wins_and_none_is_a_match() -> None:
    rules = {"layer1.0*": None, "layer*": "tt", "*conv": "cp", "*": "lowrank"}
    assert chosen(rules) == {
        "conv1": "lowrank",
        "layer1.0.conv": None,
        "layer1.1.conv": "tt",
        "layer2.0.conv": "tt",
        "head.fc1": "lowrank",
        "head.fc2": "lowrank",
    }
    assert matched(rules, NAMES, {})["layer2.0.conv"] == ("layer*", "tt")


def test_the_order_of_the_rules_decides() -> None:
    one, other = {"head.*": "tt", "*.fc1": None}, {"*.fc1": None, "head.*": "tt"}
    assert chosen(one)["head.fc1"] == "tt"
    assert chosen(other)["head.fc1"] is None
    assert "conv1" not in chosen(one)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("head.fc?", ["head.fc1", "head.fc2"]),
        ("head.fc[!1]", ["head.fc2"]),
        ("conv1", ["conv1"]),
        ("re:layer[12]\\.0.*", ["layer1.0.conv", "layer2.0.conv"]),
        ("re:.*fc1|conv1", ["conv1", "head.fc1"]),
    ],
)
def test_patterns_match_the_full_name(pattern: str, expected: list[str]) -> None:
    assert sorted(chosen({pattern: "tt"})) == expected


def test_without_rules_every_layer_has_its_default() -> None:
    assert matched(None, NAMES, {}) == dict.fromkeys(NAMES, ("", ...))


def test_every_pattern_without_a_match_is_reported() -> None:
    with pytest.raises(PatternError) as raised:
        matched({"fc1": "tt", "head.*": "tt", "re:layer3.*": "cp"}, NAMES, {})
    assert str(raised.value) == (
        "'fc1' matches no layer of the model.\n"
        "  Layers that could be meant: head.fc1.\n"
        "'re:layer3.*' matches no layer of the model.\n"
        "  Layers that could be meant: conv1, layer1.0.conv, layer1.1.conv, layer2.0.conv, head.fc1, head.fc2. "
        "Did you mean 'layer2.0.conv'?\n"
        "Nothing was changed."
    )


def test_a_typing_error_has_a_near_name() -> None:
    with pytest.raises(PatternError, match=r"Layers that could be meant: head\.fc2\."):
        matched({"haed.fc2": "tt"}, NAMES, {})


def test_a_pattern_that_matches_only_what_cannot_be_decomposed_says_why() -> None:
    with pytest.raises(PatternError) as raised:
        matched({"depth*": "tt"}, NAMES, {"depthwise": "it has 8 groups; only groups=1 is supported"})
    assert str(raised.value) == (
        "'depth*' matches only layers that cannot be decomposed: "
        "'depthwise': it has 8 groups; only groups=1 is supported.\nNothing was changed."
    )


@pytest.mark.parametrize(
    ("pattern", "text"), [("re:(", "not a regular expression"), (3, "must be a text such as 'fc*'")]
)
def test_what_is_no_pattern(pattern: object, text: str) -> None:
    with pytest.raises(PatternError, match=text.replace("*", r"\*")):
        matched({pattern: "tt"}, NAMES, {})


# --- what they map to ------------------------------------------------------------------------------------------------


def test_targets(tmp_path: Path) -> None:
    layer = describe(nn.Linear(12, 8, bias=False))
    graph = families.lowrank("linear", inputs=(12,), outputs=(8,), rank=3)
    file = tmp_path / "own.yaml"
    file.write_text(tnmars.dump(graph), encoding="utf-8")
    found = candidates(["tt", graph, file, str(file)], layer, "fc")
    assert [entry.has_ranks for entry in found] == [False, True, True, True]
    assert [entry.label for entry in found] == ["tt", "graph", str(file), str(file)]
    for entry in found:
        assert entry.graph.dense_shape == (8, 12)
        assert not entry.graph.has_bias  # options are the layer's
    assert [len(candidates(target, layer, "fc")) for target in ("tt", graph, file, ("tt", "cp"))] == [1, 1, 1, 2]


def test_options_of_the_layer_are_kept() -> None:
    layer = describe(nn.Conv2d(4, 6, 3, stride=2, padding=1))
    for entry in candidates(["lowrank", "tucker2", "cp"], layer, "conv"):
        options = dict(entry.graph.options)
        assert (options["stride"], options["padding"], entry.graph.has_bias) == (2, 1, True)


@pytest.mark.parametrize(
    ("module", "count"),
    [(nn.Linear(9, 8), 1), (nn.Conv2d(9, 8, 3), 2), (nn.Conv2d(9, 8, 1), 1), (nn.Embedding(9, 8), 1)],
)
def test_defaults_suit_the_kind(module: nn.Module, count: int) -> None:
    assert len(candidates(..., describe(module), "layer")) == count


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (3, "the rule for 'fc' is 3, but must be a family, a graph, a spec file or None."),
        (["tt", 3], "the rule for 'fc' has 3, but must have a family, a graph, a spec file or None."),
        ("lowrnk", "family 'lowrnk' is not known."),
        ("no/such.yaml", "no/such.yaml"),
        (families.lowrank("linear", inputs=(9,), outputs=(8,), rank=3), "the graph for 'fc' is linear 9 -> 8"),
        (families.tt("tensor", free=(8, 12), rank=3), "but the layer is linear with a weight of shape (8, 12)."),
    ],
)
def test_wrong_targets(target: object, text: str) -> None:
    with pytest.raises(TnmarsError) as raised:
        candidates(target, describe(nn.Linear(12, 8)), "fc")
    assert text in str(raised.value)
