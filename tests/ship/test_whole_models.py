"""Whole compressed models on their way out: programs, ONNX files and plain source, each with the same numbers."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import oracle
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import tnmars
from tnmars import TNModule
from tnmars.errors import TnmarsError
from tnmars.ship import export

needs_onnx = pytest.mark.skipif(
    any(find_spec(name) is None for name in (*export.NEEDED, "onnxruntime")),
    reason="onnx, onnxscript or onnxruntime is not installed: pip install 'tnmars[export]'",
)

NETS = '''
"""Models of a user, who knows nothing of tensor networks."""
import torch
from torch import nn


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU()
        )
        self.fc = nn.Linear(12, 10)

    def forward(self, x):
        return self.fc(self.features(x).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """With a head that is tied to the table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block(16) for _ in range(2))
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, index):
        mask = index.ne(0)[:, None, None, :]
        x = self.table(index)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(60, 12, padding_idx=1)
        self.lstm = nn.LSTM(12, 8, batch_first=True)
        self.fc = self.last = nn.Linear(8, 8)

    def forward(self, index):
        x, _ = self.lstm(self.table(index))
        return self.last(torch.relu(self.fc(x[:, -1])))
'''
"""Written to a file, because a fresh process imports it."""
SPACE: dict[str, Any] = {"__name__": "nets"}
exec(NETS, SPACE)  # noqa: S102
CASES = ("CNN", "Transformer", "Classifier")
every_model = pytest.mark.parametrize("name", CASES)


def lowrank(kind: str, inside: int, outside: int, **weight: Any) -> tnmars.Graph:
    role = "lookup" if kind == "embedding" else "inputs"
    return tnmars.network(kind, "A[i,r] B[r,o]", **{role: {"i": inside}}, outputs={"o": outside}, bonds=4, **weight)


def compressed(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A model whose layers are compiled, with ties and shared layers as in the dense one."""
    torch.manual_seed(0)
    model = SPACE[name]()
    if name == "CNN":
        taps = {"inputs": {"i": 3}, "outputs": {"o": 8}, "kernel": {"h": 3, "w": 3}, "bonds": 3}
        model.features[0] = compiled(tnmars.network("conv", "A[i,r] K[r,h,w,s] B[s,o]", options={"padding": 1}, **taps))
        patch = {"patch": {"p": 72}, "outputs": {"o": 12}, "bonds": 4, "kernel_size": (3, 3)}
        model.features[3] = compiled(tnmars.network("conv", "A[p,r] B[r,o]", options={"stride": 2}, **patch))
        model.fc = compiled(tnmars.families.tt("linear", inputs=(3, 4), outputs=(2, 5), rank=3))
    elif name == "Transformer":
        model.table = compiled(lowrank("embedding", 50, 16))
        model.head = compiled(
            tnmars.network(
                "linear", "B[r,i] A[o,r]", inputs={"i": 16}, outputs={"o": 50}, bonds=4, options={"bias": False}
            )
        )
        for core in "AB":
            model.head.cores.put(core, model.table.cores.get(core))
        for block in model.blocks:
            block.qkv, block.out = compiled(lowrank("linear", 16, 48)), compiled(lowrank("linear", 16, 16))
            block.up, block.down = compiled(lowrank("linear", 16, 32)), compiled(lowrank("linear", 32, 16))
    else:
        graph = tnmars.families.tt("embedding", lookup=(4, 5, 3), outputs=(2, 3, 2), rank=3)
        model.table = compiled(tnmars.Graph.of(graph, "words"), padding_idx=1)
        model.fc = model.last = compiled(lowrank("linear", 8, 8))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
    return model.to(dtype).eval()


def compiled(graph: tnmars.Graph, **options: Any) -> TNModule:
    return oracle.compiled(graph, **options)


def given(name: str, batch: int, dtype: torch.dtype = torch.float32) -> Tensor:
    if name == "CNN":
        return torch.randn(batch, 3, 12, 12, dtype=dtype)
    return torch.randint(2, 50, (batch, 9))


@every_model
def test_programs_of_whole_models(name: str) -> None:
    model = compressed(name)
    program = export.export_program(model, given(name, 2)).module()
    for batch in (1, 2, 5):
        x = given(name, batch)
        assert oracle.error(program(x), model(x)) <= 1e-5


@needs_onnx
@every_model
def test_onnx_files_of_whole_models(name: str, tmp_path: Path) -> None:
    import onnxruntime

    model = compressed(name)
    tnmars.export_onnx(model, tmp_path / "model.onnx", given(name, 1))
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for batch in (1, 2, 5):
        x = given(name, batch)
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert oracle.error(torch.from_numpy(found), model(x)) <= 1e-5


# --- plain source ----------------------------------------------------------------------------------------------------

CHILD = """
import json, sys
sys.modules["tnmars"] = None  # so that importing it fails
sys.path.insert(0, sys.argv[1])
import importlib, torch
from safetensors.torch import load_file, load_model
import nets

torch.set_num_threads(1)
found = {}
for name in sys.argv[2:]:
    layers = importlib.import_module(f"layers_{name}")
    model = layers.replace_(getattr(nets, name)()).double().eval()
    model.load_state_dict(torch.load(f"{sys.argv[1]}/{name}.pt"))
    case = load_file(f"{sys.argv[1]}/{name}.case")
    result = model(case["x"])
    result.sum().backward()
    again = layers.replace_(getattr(nets, name)()).double().eval()
    load_model(again, f"{sys.argv[1]}/{name}.safetensors")
    found[name] = {
        "error": ((result - case["wanted"]).norm() / case["wanted"].norm()).item(),
        "again": ((again(case["x"]) - case["wanted"]).norm() / case["wanted"].norm()).item(),
        "keys": list(model.state_dict()),
        "parameters": sum(value.numel() for value in model.parameters()),
        "copied": torch.equal(__import__("copy").deepcopy(model)(case["x"]), result),
        "pickled": bool(__import__("pickle").dumps(model)),
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def stand_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a fresh process without tnmars finds on running every model."""
    root = tmp_path_factory.mktemp("whole")
    (root / "nets.py").write_text(NETS)
    for name in CASES:
        model = compressed(name, torch.float64)
        x = given(name, 5, torch.float64)
        tnmars.write_source(model, root / f"layers_{name}.py")
        torch.save(model.state_dict(), root / f"{name}.pt")
        safetensors.torch.save_model(model, root / f"{name}.safetensors")
        safetensors.torch.save_file({"x": x, "wanted": model(x).detach().contiguous()}, root / f"{name}.case")
    done = subprocess.run([sys.executable, "-c", CHILD, str(root), *CASES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@every_model
def test_written_layers_make_the_model_without_tnmars(name: str, stand_alone: dict[str, Any]) -> None:
    model, found = compressed(name), stand_alone[name]
    assert found["error"] < 1e-12
    assert found["again"] < 1e-12
    assert sorted(found["keys"]) == sorted(model.state_dict())
    assert found["parameters"] == sum(value.numel() for value in model.parameters())
    assert found["copied"]
    assert found["pickled"]


def loaded(model: nn.Module, path: Path) -> dict[str, Any]:
    """What a written file defines."""
    tnmars.write_source(model, path)
    space: dict[str, Any] = {"__name__": "layers"}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)  # noqa: S102
    return space


def test_equal_layers_share_a_class_and_ties_come_back(tmp_path: Path) -> None:
    space = loaded(compressed("Transformer"), tmp_path / "layers.py")
    assert len([name for name in space if name.startswith("Layer")]) == 6
    assert len(space["LAYERS"]) == 10
    assert space["TIES"] == [["table.cores.A", "head.cores.A"], ["table.cores.B", "head.cores.B"]]
    model = space["replace_"](SPACE["Transformer"]())
    assert model.head.cores._parameters["A"] is model.table.cores._parameters["A"]
    assert model.blocks[0].up is not model.blocks[1].up
    other = loaded(compressed("Classifier"), tmp_path / "layers.py")["replace_"](SPACE["Classifier"]())
    assert other.fc is other.last


def test_replaced_layers_have_the_place_of_the_old_ones(tmp_path: Path) -> None:
    space = loaded(compressed("CNN").half(), tmp_path / "layers.py")
    fresh = SPACE["CNN"]().eval()
    fresh.fc.to("meta")
    model = space["replace_"](fresh)
    assert model is fresh
    assert model.fc.bias.is_meta
    assert not model.fc.training
    assert model.features[0].bias.dtype == torch.float16
    with pytest.raises(ValueError, match=r"no module called features\.0, features\.3; nothing was changed"):
        space["replace_"](nn.ModuleDict({"fc": nn.Linear(12, 10)}))


def test_kinds_with_names_of_their_own_stay_apart(tmp_path: Path) -> None:
    """A tensor whose cores are called as the functions of the file, beside a map and a table with bags."""
    free = {"i": 3, "j": 4, "k": 2}
    chain = tnmars.network("tensor", "run[i,a] CORES[a,j,b] fold[b,k]", free=free, bonds={"a": 2, "b": 2})
    pool = tnmars.network(
        "map", "A[i,r] B[j,r,o]", inputs={"i": 3, "j": 2}, outputs={"o": 4}, bonds=2,
        arguments={"x": "b n i", "y": "b m j"}, result="b n m o",
    )  # fmt: skip
    bags = lowrank("embedding", 20, 6, options={"mode": "mean", "padding_idx": 3})
    model = nn.ModuleDict({"chain": compiled(chain), "pool": compiled(pool), "bags": compiled(bags)})
    made = loaded(model, tmp_path / "layers.py")["replace_"](nn.ModuleDict({key: nn.Identity() for key in model}))
    made.load_state_dict(model.state_dict())
    assert oracle.error(made["chain"](), model["chain"]()) <= 1e-6
    index = torch.tensor([[0, 3, 1], [2, 0, 0]])
    assert oracle.error(made["chain"](index), model["chain"](index)) <= 1e-6
    x, y = torch.randn(5, 2, 3), torch.randn(5, 4, 2)
    assert oracle.error(made["pool"](x, y), model["pool"](x, y)) <= 1e-6
    tokens = torch.tensor([[0, 3, 19], [3, 3, 3]])
    assert oracle.error(made["bags"](tokens), model["bags"](tokens)) <= 1e-6
    flat, offsets = tokens.reshape(-1), torch.tensor([0, 1, 1])
    assert oracle.error(made["bags"](flat, offsets), model["bags"](flat, offsets)) <= 1e-6
    with pytest.raises(IndexError):
        made["bags"](torch.tensor([[20]]))


def test_source_of_a_layer_in_chunks(tmp_path: Path) -> None:
    """The file computes any batch at once."""
    graph = tnmars.families.tt("linear", inputs=(8, 8, 8), outputs=(8, 8, 8), rank=4)
    layer = oracle.compiled(graph, batch=4096)
    assert layer.plan("train", 4096).chunk
    made = loaded(layer, tmp_path / "layer.py")["Layer"]()
    made.load_state_dict(layer.state_dict())
    x = torch.randn(5, 512)
    assert oracle.error(made(x), layer(x)) <= 1e-5


def broken(change: Callable[[nn.Module], None]) -> nn.Module:
    model = copy.deepcopy(compressed("CNN"))
    change(model)
    return model


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda model: setattr(model, "fc", oracle.compiled(lowrank("linear", 12, 10), selector=tnmars.Mars())),
            r"layer 'fc' has gates, which its source would not have",
        ),
        (lambda model: setattr(model, "fc", tnmars.freeze(model.fc)), "layer 'fc' is frozen, and has no source"),
        (
            lambda model: setattr(model, "fc", oracle.compiled(model.fc.graph.with_terms(()))),
            "layer 'fc' has no term left",
        ),
        (tnmars.to_dense_, "CNN has no compiled layer, and so no source to write"),
    ],
)
def test_models_without_a_source_are_refused(change: Callable[[nn.Module], None], text: str, tmp_path: Path) -> None:
    with pytest.raises(TnmarsError, match=text):
        tnmars.write_source(broken(change), tmp_path / "layers.py")
    assert not list(tmp_path.iterdir())


@every_model
def test_stations_one_after_another(name: str, tmp_path: Path) -> None:
    """Saved, loaded into a fresh dense model, made of torch's layers, made dense: the same numbers at each station."""
    model, x = compressed(name, torch.float64), given(name, 3, torch.float64)
    expected = model(x)
    tnmars.save(model, tmp_path / "model.safetensors")
    fresh = tnmars.load_into(SPACE[name]().double().eval(), tmp_path / "model.safetensors")
    assert oracle.error(fresh(x), expected) <= 1e-10
    chained = tnmars.as_torch_(copy.deepcopy(fresh))
    assert oracle.error(chained.model(x), expected) <= 1e-10
    dense = tnmars.to_dense_(fresh)
    assert oracle.error(dense(x), expected) <= 1e-10
    assert {key: value.shape for key, value in dense.state_dict().items()} == {
        key: value.shape for key, value in SPACE[name]().state_dict().items()
    }
    assert sum(value.numel() for value in dense.parameters()) == sum(
        value.numel() for value in SPACE[name]().parameters()
    )
