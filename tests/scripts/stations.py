"""Compressed models on all their ways: trained on, pruned, saved, loaded in a fresh process, exported. Same numbers.

    python tests/scripts/stations.py FOLDER [cnn|lstm|transformer ...]

Prints a line for each station with the largest difference, relative to the norm of what is expected. The exit status is
1 if one is too large. A station whose packages are missing is skipped, with the reason.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from torch import Tensor, nn

MOST = 1e-5
NAMES = ("cnn", "lstm", "transformer")


class CNN(nn.Module):
    """As for CIFAR-10, with normalization, a stride and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.AvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class LSTM(nn.Module):
    """Two layers, both directions, a table before and a classifier after."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 20, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.table(x))[0].mean(1))


class Transformer(nn.Module):
    """Torch's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.table(x)).mean(1))


MODELS = {"cnn": CNN, "lstm": LSTM, "transformer": Transformer}


def inputs(name: str, count: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    if name == "cnn":
        return torch.randn(count, 3, 16, 16, generator=random)
    return torch.randint(100, (count, 9), generator=random)


def step_(model: nn.Module, x: Tensor, steps: int = 5) -> None:
    """Trains on some steps."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    labels = torch.arange(len(x)) % 4
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        missing = [key for key, value in model.named_parameters() if value.grad is None]
        assert not missing, f"no gradient: {missing}"
        optimizer.step()
    model.eval()


def away(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach().double()).norm() / expected.detach().double().norm())


def dense(name: str, model: nn.Module) -> nn.Module:
    """A fresh model of torch's own layers, with the naive truth of every weight: one product of all cores, summed."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import oracle

    import tnmars

    plain = MODELS[name]().eval()
    known = plain.state_dict()
    state = {key: value for key, value in model.state_dict().items() if key in known}
    for place, layer in model.named_modules():
        if isinstance(layer, tnmars.TNModule):
            weight = oracle.dense(
                layer.graph, oracle.whole(layer.graph, {key: layer.cores.get(key) for key in layer.graph.cores})
            )
            rebuilt = place.replace("parametrizations.", "").removesuffix(".0.layer")
            state[rebuilt if rebuilt != place else f"{place}.weight"] = weight.detach().float()
    plain.load_state_dict(state)
    return plain


def stations(name: str, folder: Path) -> Iterator[tuple[str, float | str]]:
    """The name of each station with its difference, or with the reason that it is skipped."""
    import tnmars

    torch.manual_seed(0)
    model = MODELS[name]()
    step_(model, inputs(name, 64))
    x = inputs(name, 16, seed=1)

    model.train()
    plan = tnmars.compress_(model, budget="1.7x", data=inputs(name, 512, seed=2), progress=False)
    assert all(module.training for module in model.modules()), "the training flags changed"
    assert sum(value.numel() for value in model.parameters()) == plan.parameters.after <= plan.parameters.before / 1.7
    yield "compressed, eval", away(model.eval()(x), dense(name, model)(x))
    with torch.no_grad():
        yield "compressed, eval without gradients", away(model(x), dense(name, model)(x))

    before = model(x)
    step_(model, inputs(name, 64))
    assert away(model(x), before) > 1e-3, "training had no effect"
    yield "trained on", away(model(x), dense(name, model)(x))
    plain = dense(name, model).train()  # before the seed, because a fresh model draws numbers
    torch.manual_seed(0)
    found = model.train()(x)
    torch.manual_seed(0)
    yield "trained on, train", away(found, plain(x))
    model.eval()

    small = tnmars.prune(model, energy=0.9)
    assert sum(value.numel() for value in small.parameters()) < plan.parameters.after, "nothing was pruned"
    assert away(small(x), model(x)) < 0.6
    yield "pruned", away(small(x), dense(name, small)(x))

    expected = small(x).detach()
    torch.save(expected, folder / "expected.pt")
    tnmars.save(small, folder / "model.safetensors")
    yield "loaded here", away(tnmars.load_into(MODELS[name](), folder / "model.safetensors").eval()(x), expected)
    yield "loaded in a fresh process", fresh("load", name, folder)
    yield "frozen, compact", away(tnmars.freeze(small)(x), expected)
    yield "frozen, fast", away(tnmars.freeze(small, "fast")(x), expected)

    tnmars.write_source(small, folder / "layers.py")
    torch.save(small.state_dict(), folder / "model.pt")
    yield "plain source in a fresh process", fresh("source", name, folder)
    yield "onnx", onnx(small, x, expected, folder)


def onnx(model: nn.Module, x: Tensor, expected: Tensor, folder: Path) -> float | str:
    missing = [package for package in ("onnx", "onnxscript", "onnxruntime") if find_spec(package) is None]
    if missing:
        return f"skipped: {', '.join(missing)} cannot be imported"
    import onnxruntime

    import tnmars

    tnmars.export_onnx(model, folder / "model.onnx", x)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return away(torch.from_numpy(found), expected)


def fresh(task: str, name: str, folder: Path) -> float:
    """What this file measures in a process of its own."""
    run = [sys.executable, __file__, str(folder), f"--{task}", name]
    return float(subprocess.run(run, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def load(name: str, folder: Path) -> float:
    import tnmars

    model = tnmars.load_into(MODELS[name](), folder / "model.safetensors").eval()
    return away(model(inputs(name, 16, seed=1)), torch.load(folder / "expected.pt"))


def source(name: str, folder: Path) -> float:
    """Without tnmars."""
    sys.modules["tnmars"] = None  # type: ignore[assignment]
    place = spec_from_file_location("layers", folder / "layers.py")
    assert place is not None
    assert place.loader is not None
    layers = module_from_spec(place)
    place.loader.exec_module(layers)
    model = layers.replace_(MODELS[name]())
    model.load_state_dict(torch.load(folder / "model.pt"))
    return away(model.eval()(inputs(name, 16, seed=1)), torch.load(folder / "expected.pt"))


TASKS: dict[str, Callable[[str, Path], float]] = {"--load": load, "--source": source}


def main(folder: Path, *names: str) -> int:
    if names and names[0] in TASKS:
        print(TASKS[names[0]](names[1], folder))
        return 0
    status = 0
    for name in names or NAMES:
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for station, found in stations(name, place):
            is_wrong = isinstance(found, float) and not found < MOST
            shown = found if isinstance(found, str) else f"{found:.1e}{'  TOO LARGE' if is_wrong else ''}"
            print(f"{name:12} {station:36} {shown}", flush=True)
            status |= is_wrong
    return status


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
