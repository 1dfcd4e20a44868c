"""Saved models: every kind of layer comes back as it was, misfits are reported at once, and damage is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from kit import SPECS
from torch import Tensor, nn

import tnmars
from tnmars.errors import CheckpointError, TnmarsError
from tnmars.store import container
from tnmars.store.container import Container

SMALL = """
tnmars: 1
kind: linear
modes: {in: {i1: 3, i2: 4}, out: {o1: 2, o2: 5}}
bonds: {r: 4}
cores: {A: [i1, o1, r], B: [r, i2, o2]}
"""


def small(rank: int = 4, **settings: object) -> tnmars.TNModule:
    return tnmars.compile(tnmars.loads(SMALL.replace("r: 4", f"r: {rank}")), **settings)


class Net(nn.Module):
    def __init__(self, middle: nn.Module | None = None, **settings: object):
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.middle = small(**settings) if middle is None else middle
        self.last = nn.Linear(10, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.last(self.middle(self.first(x).relu())))


def same(first: nn.Module, second: nn.Module) -> bool:
    """Whether two modules hold the same numbers, by name, type and bits."""
    ours, theirs = first.state_dict(), second.state_dict()
    return list(ours) == list(theirs) and all(
        ours[key].dtype == theirs[key].dtype and ours[key].equal(theirs[key]) for key in ours
    )


# --- round trips -----------------------------------------------------------------------------------------------------


SELECTORS = {"none": None, "mars": tnmars.Mars(alpha=0.1, spread=1.0), "gaussian": tnmars.GaussianGates()}
TRIPS = [(path, name) for path in SPECS for name in ("none", "mars")] + [(SPECS[0], "gaussian")]


@pytest.mark.parametrize(("path", "name"), TRIPS, ids=[f"{path.stem}-{name}" for path, name in TRIPS])
def test_every_spec_comes_back(path: Path, name: str, tmp_path: Path) -> None:
    selector = SELECTORS[name]
    layer = tnmars.compile(path, selector=selector, batch=16, image=8)
    if not layer.graph.of_role(tnmars.Role.LOOKUP):
        layer.plan("infer", 1)
    tnmars.save(layer, tmp_path / "a.safetensors")
    before = torch.get_rng_state()
    back = tnmars.load_into(nn.Identity(), tmp_path / "a.safetensors")
    assert torch.get_rng_state().equal(before)
    assert isinstance(back, tnmars.TNModule)
    assert same(back, layer)
    assert (back.graph, back.graph.name, back.graph.origin) == (layer.graph, layer.graph.name, layer.graph.origin)
    assert back.selector == layer.selector
    assert (back.masks is None) == (layer.masks is None)
    assert back.programs.plans == layer.programs.plans
    assert back.planner == layer.planner
    assert back.dense().equal(layer.dense())


def test_any_reader_of_safetensors_reads_the_file(tmp_path: Path) -> None:
    model = Net(selector=tnmars.Mars())
    tnmars.save(model, tmp_path / "a.safetensors")
    found = safetensors.torch.load_file(tmp_path / "a.safetensors")
    assert found.keys() == model.state_dict().keys()
    assert all(found[key].equal(value) for key, value in model.state_dict().items())


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    model = Net(selector=tnmars.Mars())
    tnmars.save(model, tmp_path / "a")
    tnmars.save(model, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    "middle",
    [lambda: nn.Linear(12, 10), lambda: small(7), lambda: small(4, selector=tnmars.Mars()), small],
    ids=["dense", "other graph", "gates", "same"],
)
def test_layers_of_a_fresh_model_are_replaced(middle, tmp_path: Path) -> None:
    model = tnmars.prune(Net(selector=tnmars.Mars(alpha=0.0, spread=1.0), rank=6))
    tnmars.save(model, tmp_path / "a")
    fresh = Net(middle())
    held = fresh.middle
    assert tnmars.load_into(fresh, tmp_path / "a") is fresh
    assert same(fresh, model)
    assert (fresh.middle is held) == isinstance(held, tnmars.TNModule)
    assert fresh.middle.graph == model.middle.graph
    assert fresh.middle.graph.origin == model.middle.graph.origin
    assert fresh.middle.graph.origin["sizes"] == {"r": 6}
    assert fresh.middle.masks is None
    assert fresh.middle.selector == tnmars.Mars(alpha=0.0, spread=1.0)
    x = torch.randn(5, 6)
    assert fresh(x).equal(model(x))


def test_parameters_that_fit_stay_the_same_objects(tmp_path: Path) -> None:
    """So that an optimiser that was made before goes on with them."""
    tnmars.save(Net(rank=5, selector=tnmars.Mars()), tmp_path / "a")
    fresh = Net(rank=5, selector=tnmars.Mars())
    before = list(fresh.parameters())
    tnmars.load_into(fresh, tmp_path / "a")
    assert all(one is other for one, other in zip(before, fresh.parameters(), strict=True))


def test_a_layer_that_is_the_whole_model(tmp_path: Path) -> None:
    layer = small(3)
    tnmars.save(layer, tmp_path / "a")
    other = small(5)
    assert tnmars.load_into(other, tmp_path / "a") is other
    assert same(other, layer)
    assert other.graph == layer.graph
    put = tnmars.load_into(nn.Linear(12, 10), tmp_path / "a")
    assert isinstance(put, tnmars.TNModule)
    assert same(put, layer)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_type_of_the_file_wins_for_compiled_layers(dtype: torch.dtype, tmp_path: Path) -> None:
    model = Net(selector=tnmars.Mars()).to(dtype)
    tnmars.save(model, tmp_path / "a")
    for middle in (nn.Linear(12, 10), small(selector=tnmars.Mars())):
        fresh = Net(middle)
        tnmars.load_into(fresh, tmp_path / "a")
        assert same(fresh.middle, model.middle)
        assert fresh.middle.dtype == dtype
        assert fresh.first.weight.dtype == torch.float32


def test_types_within_a_layer_may_differ(tmp_path: Path) -> None:
    layer = small(selector=tnmars.Mars())
    layer.cores.half()
    tnmars.save(layer, tmp_path / "a")
    assert same(tnmars.load_into(small(), tmp_path / "a"), layer)


def test_what_is_not_trained_stays_so(tmp_path: Path) -> None:
    model = Net()
    model.middle.cores.get("A").requires_grad_(False)
    tnmars.save(model, tmp_path / "a")
    fresh = tnmars.load_into(Net(nn.Linear(12, 10)), tmp_path / "a")
    assert [name for name, value in fresh.named_parameters() if not value.requires_grad] == ["middle.cores.A"]


def test_training_mode_and_hooks_are_the_models_own(tmp_path: Path) -> None:
    tnmars.save(Net(selector=tnmars.Mars()).eval(), tmp_path / "a")
    fresh = Net(rank=2)
    seen = []
    fresh.middle.register_forward_hook(lambda *_: seen.append(1))
    tnmars.load_into(fresh, tmp_path / "a")
    assert all(module.training for module in fresh.modules())
    fresh(torch.randn(4, 6))
    assert seen == [1]
    evaluated = tnmars.load_into(Net(nn.Linear(12, 10)).eval(), tmp_path / "a")
    assert not any(module.training for module in evaluated.modules())


# --- ties ------------------------------------------------------------------------------------------------------------


def test_shared_tensors_are_stored_once_and_shared_again(tmp_path: Path) -> None:
    def pair() -> nn.Sequential:
        model = nn.Sequential(small(), nn.Linear(10, 12), small(), nn.Linear(10, 12))
        model[3].weight = model[1].weight
        return model

    model = pair()
    model[2].cores.put("B", model[0].cores.get("B"))
    tnmars.save(model, tmp_path / "a")
    stored = safetensors.torch.load_file(tmp_path / "a")
    assert "2.cores.B" not in stored
    assert "3.weight" not in stored
    for fresh in (pair(), nn.Sequential(*(nn.Linear(*sizes) for sizes in [(12, 10), (10, 12)] * 2))):
        tnmars.load_into(fresh, tmp_path / "a")
        assert same(fresh, model)
        assert fresh[2].cores.get("B") is fresh[0].cores.get("B")
        assert fresh[2].cores.get("A") is not fresh[0].cores.get("A")


def test_a_layer_with_two_names(tmp_path: Path) -> None:
    shared = small(selector=tnmars.Mars())
    model = nn.ModuleDict({"a": shared, "b": shared})
    tnmars.save(model, tmp_path / "a")
    for fresh in (
        nn.ModuleDict({"a": nn.Linear(12, 10), "b": nn.Linear(12, 10)}),
        nn.ModuleDict({"a": small(2), "b": nn.Linear(12, 10)}),
        nn.ModuleDict({"a": nn.Linear(12, 10), "b": small(2)}),
        nn.ModuleDict({"a": small(2), "b": small(3)}),
    ):
        tnmars.load_into(fresh, tmp_path / "a")
        assert fresh["a"] is fresh["b"]
        assert same(fresh, model)


def test_a_tie_that_the_file_does_not_have_is_reported(tmp_path: Path) -> None:
    tnmars.save(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), tmp_path / "a")
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(TnmarsError, match=r"tensors '0.weight' and '1.weight' are one in the model, but differ"):
        tnmars.load_into(tied, tmp_path / "a")


# --- what does not fit -----------------------------------------------------------------------------------------------


def test_everything_that_does_not_fit_is_reported_and_nothing_is_changed(tmp_path: Path) -> None:
    tnmars.save(Net(rank=6), tmp_path / "a")
    fresh = Net(nn.Linear(12, 10))
    fresh.last = nn.Linear(10, 4)
    fresh.norm = nn.LayerNorm(3)
    fresh.more = nn.Linear(1, 1, bias=False)
    held, before = fresh.middle, {key: value.clone() for key, value in fresh.state_dict().items()}
    with pytest.raises(TnmarsError) as caught:
        tnmars.load_into(fresh, tmp_path / "a")
    source = tmp_path / "a"
    assert str(caught.value).splitlines() == [
        f"{source}: tensor 'more.weight' of the model is missing in the file.",
        f"{source}: tensor 'norm.num_batches_tracked' of the file is not in the model.",
        f"{source}: tensor 'norm.running_mean' of the file is not in the model.",
        f"{source}: tensor 'norm.running_var' of the file is not in the model.",
        f"{source}: tensor 'last.weight' has shape (4, 10) in the model, but (3, 10) in the file.",
        f"{source}: tensor 'last.bias' has shape (4,) in the model, but (3,) in the file.",
        f"{source}: Nothing was changed.",
    ]
    assert fresh.middle is held
    assert all(value.equal(before[key]) for key, value in fresh.state_dict().items())


def test_a_layer_that_the_model_does_not_have(tmp_path: Path) -> None:
    tnmars.save(nn.ModuleDict({"middle": small(), "end": nn.Linear(2, 2)}), tmp_path / "a")
    with pytest.raises(TnmarsError, match="layer 'middle' is not in the model") as caught:
        tnmars.load_into(nn.ModuleDict({"midle": small(), "end": nn.Linear(2, 2)}), tmp_path / "a")
    assert "Modules: midle, " in str(caught.value)
    assert "Did you mean 'midle'?" in str(caught.value)


def test_a_layer_of_another_size(tmp_path: Path) -> None:
    tnmars.save(nn.Sequential(small()), tmp_path / "a")
    with pytest.raises(TnmarsError, match="layer '0' has out_features 11, but 10 in the file"):
        tnmars.load_into(nn.Sequential(nn.Linear(12, 11)), tmp_path / "a")


def test_frozen_layers_are_refused(tmp_path: Path) -> None:
    model = Net()
    with pytest.raises(TnmarsError, match=r"layer 'middle' is frozen.*\n  Save the model that it was made from"):
        tnmars.save(tnmars.freeze(model), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    tnmars.save(model, tmp_path / "a")
    with pytest.raises(TnmarsError, match="layer 'middle' of the model is frozen"):
        tnmars.load_into(tnmars.freeze(model), tmp_path / "a")


def test_a_model_on_the_meta_device_is_refused(tmp_path: Path) -> None:
    tnmars.save(nn.Linear(2, 2), tmp_path / "a")
    with pytest.raises(TnmarsError, match="'weight' of the model is on the meta device"):
        tnmars.load_into(nn.Linear(2, 2, device="meta"), tmp_path / "a")
    with pytest.raises(TnmarsError, match="'bias' is on the meta device, which cannot be saved"):
        tnmars.save(nn.Linear(2, 2, device="meta"), tmp_path / "b")


def test_a_state_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> object:
            return {"a": 1}

        def set_extra_state(self, state: object) -> None:
            pass

    with pytest.raises(TnmarsError, match="'_extra_state' of the model's state is of type dict"):
        tnmars.save(Odd(2, 2), tmp_path / "a")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TnmarsError, match="cannot be written: No such file or directory"):
        tnmars.save(nn.Linear(2, 2), tmp_path / "none" / "a")
    with pytest.raises(CheckpointError, match="cannot be read: No such file or directory"):
        tnmars.load_into(nn.Linear(2, 2), tmp_path / "none")


# --- files that are not ours -----------------------------------------------------------------------------------------


def test_a_file_of_someone_else(tmp_path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.zeros(100)}, tmp_path / "a")
    with pytest.raises(CheckpointError, match="is not a file that tnmars wrote"):
        tnmars.load_into(nn.Linear(2, 2), tmp_path / "a")
    (tmp_path / "b").write_bytes(b"")
    with pytest.raises(CheckpointError, match="it has 0 bytes, too few"):
        tnmars.load_into(nn.Linear(2, 2), tmp_path / "b")


def forged(path: Path, change) -> None:
    """Writes a file whose header says something else, with a right digest."""
    held = container.read(path)
    header = json.loads(json.dumps(held.header))
    change(header)
    container.write(path, Container(header, held.tensors))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda header: header.update(version=9), "has version 9 of the format, but this tnmars reads version 1"),
        (lambda header: header["layers"][0].update(spec="tnmars: 1\nkind: linear\n"), "layer 'middle': "),
        (lambda header: header["layers"][0].update(selector={"name": "evil"}), "selector 'evil' is unknown"),
        (lambda header: header["layers"][0].update(dtype="torch.int8"), "'dtype' of its description is 'torch.int8'"),
        (lambda header: header["layers"][0].pop("plans"), "layer 'middle': its description has no 'plans'"),
        (lambda header: header["layers"][0]["plans"].update(train=3), "layer 'middle': 'train' of the plan is 3"),
    ],
)
def test_what_a_header_says_is_checked(change, text: str, tmp_path: Path) -> None:
    tnmars.save(Net(), tmp_path / "a")
    forged(tmp_path / "a", change)
    with pytest.raises(CheckpointError) as caught:
        tnmars.load_into(Net(), tmp_path / "a")
    assert text in str(caught.value)


def test_a_file_without_layers(tmp_path: Path) -> None:
    container.write(tmp_path / "a", Container({"layers": [3]}, {}))
    with pytest.raises(CheckpointError, match="does not say which layers are compiled"):
        tnmars.load_into(Net(), tmp_path / "a")


def test_plans_are_those_of_the_machine_that_made_them(tmp_path: Path) -> None:
    """A cost model of one's own, and the plans that it led to, go with the layer, other batch sizes included."""
    slow = tnmars.CostModel(call=1.0)
    layer = tnmars.compile(SPECS[0].with_name("tt_linear.yaml"), model=slow, batch=64, open_only=True)
    layer.plan("infer", 1)
    plain = tnmars.compile(SPECS[0].with_name("tt_linear.yaml"), batch=64)
    assert layer.plan("train", 64) != plain.plan("train", 64)
    tnmars.save(layer, tmp_path / "a")
    tnmars.load_into(plain, tmp_path / "a")
    assert plain.planner == layer.planner
    assert plain.programs.plans == layer.programs.plans
    assert plain.plan("train", 1024) == layer.plan("train", 1024)
    assert plain.open_only


@pytest.mark.parametrize("dtype", container.DTYPES, ids=str)
def test_tensors_of_every_type(dtype: torch.dtype, tmp_path: Path) -> None:
    value = torch.arange(6).reshape(2, 3).to(dtype).t()
    container.write(tmp_path / "a", Container({}, {"x": value, "y": torch.zeros(3, dtype=torch.uint8)}))
    back = container.read(tmp_path / "a").tensors["x"]
    assert back.dtype == dtype
    assert back.shape == (3, 2)
    assert back.to(torch.float64).equal(value.to(torch.float64))


def test_a_type_that_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(
        TnmarsError, match=r"tensor 'x' is of type torch\.float8_e4m3fnuz, torch\.strided, which cannot be saved"
    ):
        container.write(tmp_path / "a", Container({}, {"x": torch.zeros(2).to(torch.float8_e4m3fnuz)}))


def test_an_origin_of_many_cuts_is_kept(tmp_path: Path) -> None:
    """Deeper than a spec file may be."""
    layer = small(3, selector=tnmars.Mars(alpha=3.0))
    for step in range(60):
        tnmars.prune_(layer, keep={"": {}}, keep_gates=True, step=step)
    tnmars.save(layer, tmp_path / "a")
    assert tnmars.load_into(small(), tmp_path / "a").graph.origin == layer.graph.origin


@pytest.mark.parametrize("tensors", [{}, {"empty": torch.zeros(0, 3), "number": torch.tensor(True)}])
def test_odd_tensors(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    container.write(tmp_path / "a", Container({"x": "é\n\"'"}, tensors))
    back = container.read(tmp_path / "a")
    assert back.header["x"] == "é\n\"'"
    assert back.tensors.keys() == tensors.keys()
    assert all(
        back.tensors[key].shape == value.shape and back.tensors[key].equal(value) for key, value in tensors.items()
    )
    assert safetensors.torch.load_file(tmp_path / "a").keys() == tensors.keys()


CONV = tnmars.families.cp("conv", inputs=(4,), outputs=(6,), kernel=(3, 3), rank=2)
TABLE = tnmars.families.lowrank("embedding", lookup=(9,), outputs=(4,), rank=2)
PADDED = replace(TABLE, options=(("padding_idx", 3),))


class OwnForward(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


OTHERS = {
    "stride": (CONV, lambda: nn.Conv2d(4, 6, 3, stride=2), r"has stride \(2, 2\), but 1 in the file"),
    "padding": (CONV, lambda: nn.Conv2d(4, 6, 3, padding=1), r"has padding \(1, 1\), but 0 in the file"),
    "groups": (CONV, lambda: nn.Conv2d(4, 6, 3, groups=2), "has groups 2, but 1 in the file"),
    "border": (CONV, lambda: nn.Conv2d(4, 6, 3, padding_mode="circular"), "has padding_mode 'circular', but 'zeros'"),
    "bags": (TABLE, lambda: nn.EmbeddingBag(9, 4, mode="sum"), "has mode 'sum', but None in the file"),
    "a bias": (tnmars.loads(SMALL), lambda: nn.Linear(12, 10, bias=False), "has no bias, but one in the file"),
    "no bias": (
        replace(CONV, options=(("bias", False),)),
        lambda: nn.Conv2d(4, 6, 3),
        "has a bias, but none in the file",
    ),
    "a row that is not added": (
        TABLE,
        lambda: nn.EmbeddingBag(9, 4, mode="sum", padding_idx=2),
        "has padding_idx 2, but None",
    ),
    "a row of zeros": (PADDED, lambda: nn.Embedding(9, 4), "has padding_idx None, but 3 in the file"),
    "another row of zeros": (PADDED, lambda: nn.Embedding(9, 4, padding_idx=2), "has padding_idx 2, but 3 in the file"),
    "largest norm": (TABLE, lambda: nn.Embedding(9, 4, max_norm=2.0), "has max_norm 2.0, but None in the file"),
    "compiled": (CONV, lambda: tnmars.compile(CONV, stride=2, batch=2, image=8), "has stride 2, but 1 in the file"),
    "compiled without a bias": (
        CONV,
        lambda: tnmars.compile(CONV, bias=False, batch=2, image=8),
        "has no bias, but one in the file",
    ),
    "transposed": (
        CONV,
        lambda: nn.ConvTranspose2d(4, 6, 3),
        "is of kind 'conv_transpose', but of kind 'conv' in the file",
    ),
    "bilinear": (tnmars.loads(SMALL), lambda: nn.Bilinear(12, 12, 10), "is of type Bilinear: no layer of torch that"),
    "recurrent": (tnmars.loads(SMALL), lambda: nn.GRU(12, 10), "is of type GRU: no layer of torch that"),
    "norm": (tnmars.loads(SMALL), lambda: nn.BatchNorm1d(12), "is of type BatchNorm1d: no layer of torch that"),
    "lazy": (CONV, lambda: nn.LazyLinear(6), "is of type LazyLinear: its weight is not initialized"),
    "own forward": (
        tnmars.loads(SMALL),
        lambda: OwnForward(12, 10),
        "is of type OwnForward: OwnForward has a forward method of its own",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_only_a_layer_with_the_same_options_is_replaced(name: str, tmp_path: Path) -> None:
    graph, make, words = OTHERS[name]
    tnmars.save(nn.Sequential(tnmars.compile(graph, batch=2, image=8)), tmp_path / "a")
    model = nn.Sequential(make())
    first = model[0]
    with pytest.raises(tnmars.TnmarsError, match=words):
        tnmars.load_into(model, tmp_path / "a")
    assert model[0] is first


@pytest.mark.parametrize(
    ("options", "make"),
    [
        ({"stride": 2, "padding": 1}, lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1)),
        ({"padding": "same", "dilation": (2, 1)}, lambda: nn.Conv2d(4, 6, 3, padding="same", dilation=(2, 1))),
        ({}, lambda: nn.Conv2d(4, 6, 3, padding="valid")),
        ({"padding": 1, "padding_mode": "reflect"}, lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")),
    ],
)
def test_equal_options_are_recognized_however_they_are_written(
    options: dict[str, object], make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    layer = tnmars.compile(CONV, batch=2, image=8, **options)
    tnmars.save(nn.Sequential(layer), tmp_path / "a")
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(tnmars.load_into(nn.Sequential(make()), tmp_path / "a")(x), layer(x))


def test_a_table_whose_padding_is_trained_loads_where_it_came_from(tmp_path: Path) -> None:
    """`compress_` takes a padding row that is not zero for a row like the others: the file has no `padding_idx`."""
    tnmars.save(nn.Sequential(tnmars.compile(TABLE)), tmp_path / "a")
    loaded = tnmars.load_into(nn.Sequential(nn.Embedding(9, 4, padding_idx=0)), tmp_path / "a")
    assert isinstance(loaded[0], tnmars.TNModule) and loaded[0].padding_idx is None
