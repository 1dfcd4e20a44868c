"""The top of a report: a model that got worse is not praised for its size, and a missing metric is mentioned."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from copy import deepcopy
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import pytest
import torch
from torch import nn

import tnmars
from tnmars import cli
from tnmars.reporting import collect, page
from tnmars.reporting.metrics import Metric

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
GRAPH = tnmars.families.tt("linear", inputs=(4, 3, 2), outputs=(2, 3, 4), rank=5)


def gated() -> tnmars.TNModule:
    layer = tnmars.compile(GRAPH, selector=tnmars.Mars(), batch=16)
    with torch.no_grad():
        for logits in layer.logits():
            logits.copy_(torch.tensor([2.0, 2.0, -2.0, -2.0, -2.0]))
    return layer


@pytest.fixture(scope="module")
def layer() -> tnmars.TNModule:
    torch.manual_seed(0)
    return gated()


def lead(layer: tnmars.TNModule, **given: object) -> str:
    """The sentence below the title."""
    text = page(collect(layer, tnmars.prune(layer), measure=False, **given))
    (words,) = re.findall(r'<p class="lead[^"]*">([^<]*)</p>', text)
    return unescape(words)


def tiles(text: str) -> list[str]:
    return re.findall(r'<div class="tile[^"]*"><p class="name">([^<]*)</p>', text)


def test_without_a_metric_the_page_says_so(layer: tnmars.TNModule) -> None:
    # 4·2·5 + 5·3·3·5 + 5·2·4 numbers before, 4·2·2 + 2·3·3·2 + 2·2·4 after, and 24 biases: 329 and 92.
    assert lead(layer) == (
        "3.58× fewer parameters. No metric was given, so this page does not say whether the model still works."
    )


def test_a_metric_comes_first(layer: tnmars.TNModule) -> None:
    found = collect(
        layer, tnmars.prune(layer), measure=False, metrics={"accuracy": (0.981, 0.979), "test_loss": (1.0, 1.1)}
    )
    text = page(found)
    assert tiles(text)[:2] == ["Accuracy", "Test loss"]
    assert "0.002 lower" in text and "0.1 higher" in text
    assert lead(layer, metrics={"accuracy": (0.981, 0.979)}).startswith("Accuracy 0.981 → 0.979, with ")
    assert found.as_json()["metrics"]["accuracy"] == {"before": 0.981, "after": 0.979}


def test_a_metric_that_fell_badly_is_the_headline(layer: tnmars.TNModule) -> None:
    words = lead(layer, metrics={"accuracy": (0.981, 0.163)})
    assert words.startswith("The model got much worse: accuracy went from 0.981 to 0.163.")
    assert "fewer" not in words and "faster" not in words
    assert 'class="tile bad"' in page(collect(layer, layer, measure=False, metrics={"accuracy": (0.981, 0.163)}))


@pytest.mark.parametrize(
    ("name", "before", "after", "much_worse"),
    [
        ("accuracy", 98.0, 97.0, False),
        ("accuracy", 98.0, 90.0, True),
        ("accuracy", 16.0, 98.0, False),
        ("val_loss", 1.0, 1.2, False),
        ("val_loss", 1.0, 1.3, True),
        ("perplexity", 20.0, 10.0, False),
        ("error rate", 0.02, 0.04, True),
        ("flossiness", 1.0, 2.0, False),
    ],
)
def test_what_much_worse_means(name: str, before: float, after: float, much_worse: bool) -> None:
    assert Metric(name, before, after).is_much_worse is much_worse


def test_a_history_brings_its_accuracy(layer: tnmars.TNModule) -> None:
    history = [{"epoch": at, "loss": 1.0, "accuracy": value} for at, value in enumerate((90.0, 97.0, 16.0))]
    (metric,) = collect(layer, layer, measure=False, history=history).metrics
    assert (metric.name, metric.before, metric.after) == ("accuracy", 97.0, 16.0)
    assert lead(layer, history=history).startswith("The model got much worse: accuracy went from 97 to 16.")
    assert collect(layer, layer, measure=False, history=[{"epoch": 0, "loss": 1.0}]).metrics == ()
    assert collect(layer, layer, measure=False, history=history, metrics={}).metrics == ()


@pytest.mark.parametrize("pair", [(1.0,), 0.9, ("a", "b"), (0.9, float("nan")), (True, False), "ab"])
def test_what_is_no_pair_of_numbers_is_refused(layer: tnmars.TNModule, pair: object) -> None:
    with pytest.raises(tnmars.TnmarsError) as caught:
        collect(layer, layer, measure=False, metrics={"accuracy": pair})  # type: ignore[dict-item]
    assert str(caught.value) == (
        f"metrics['accuracy'] is {pair!r}, but must be two finite numbers.\n"
        "  Give the values before and after, for example metrics={'accuracy': (0.981, 0.979)}."
    )


def test_the_command_takes_metrics(layer: tnmars.TNModule, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tnmars.save(layer, tmp_path / "a")
    command = ["report", str(tmp_path / "a"), str(tmp_path / "a"), "-o", str(tmp_path / "r.html"), "--no-measure"]
    assert cli.run([*command, "--metric", "accuracy=0.98,0.12"]) == 0
    assert capfd.readouterr().out.startswith("accuracy: 0.98 -> 0.12\n")
    assert "The model got much worse" in (tmp_path / "r.html").read_text()
    assert cli.run([*command, "--metric", "accuracy=0.98"]) == 2
    assert "must have the form NAME=BEFORE,AFTER, for example accuracy=0.981,0.979." in capfd.readouterr().err


def test_latency_is_compared_with_dense(layer: tnmars.TNModule) -> None:
    found = collect(layer, tnmars.prune(layer), measure=True)
    (tile,) = re.findall(r'<p class="name">Measured latency</p>.*?<p class="words">([^<]*)</p>', page(found), re.S)
    dense, after = found.layers[0].dense_seconds, found.layers[0].after.seconds
    assert dense and after
    assert "than before. Dense takes " in tile
    times = max(dense, after) / min(dense, after)
    assert f"{times:.2f}× {'faster' if after < dense else 'slower'}. Batch 16, 1 thread" in tile


# --- many layers -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many() -> tnmars.reporting.Report:
    torch.manual_seed(0)
    blocks = nn.ModuleList(nn.ModuleDict({"attention": gated(), "mlp": gated()}) for _ in range(3))
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"layers": blocks})})
    return collect(model, tnmars.prune(model), measure=False, metrics={"accuracy": (0.9, 0.9)})


def test_many_layers_are_folded_and_lose_their_common_prefix(many: tnmars.reporting.Report) -> None:
    text = page(many)
    assert many.prefix == "encoder.layers."
    assert many.titles[:3] == ("0.attention", "0.mlp", "1.attention")
    assert text.count('<details class="whole-layer">') == 6
    assert "All names begin with “encoder.layers.”" in unescape(text)
    assert text.count("encoder.layers.0.attention") == 0
    assert many.as_json()["layers"][0]["name"] == "encoder.layers.0.attention"


def slow(found: tnmars.reporting.Report) -> tnmars.reporting.Report:
    """The same report with latencies whose text is long."""
    layers = [
        replace(
            layer,
            before=replace(layer.before, seconds=928.9e-6 / 6),
            after=replace(layer.after, seconds=788.8e-6 / 6),
            dense_seconds=277.7e-6 / 6,
        )
        for layer in found.layers
    ]
    return replace(found, layers=tuple(layers), is_measured=True)


PROBE = """
<script>
addEventListener("load", () => {
  const inner = document.getElementById("phone").contentDocument;
  for (const part of inner.querySelectorAll("details")) part.open = true;
  const root = inner.scrollingElement;
  const inside = box => box.left >= -0.5 && box.right <= 390.5;
  const told = {
    wide: root.scrollWidth, view: root.clientWidth,
    tables: [...inner.querySelectorAll(".stacks")].filter(part => part.scrollWidth > part.clientWidth + 1).length,
    stacks: inner.querySelectorAll(".stacks").length,
    outside: [...inner.querySelectorAll("p, h1, h2, h3, .stacks td, .tile")]
      .filter(part => !inside(part.getBoundingClientRect())).map(part => part.textContent.slice(0, 40)),
    touching: [...inner.querySelectorAll(".tile")].filter(tile => [...tile.querySelectorAll("span, b")].some(part =>
      part.getBoundingClientRect().right > tile.getBoundingClientRect().right - 8)).map(tile => tile.textContent),
  };
  document.title = JSON.stringify(told);
});
</script>
"""


def framed(text: str, folder: Path, wide: int = 390) -> dict[str, object]:
    """What a page is like in a frame of some width: the windows of headless browsers cannot be as narrow as a phone."""
    assert BROWSER
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    frame = f'<iframe id="phone" style="border:0;width:{wide}px;height:800px" srcdoc="{escape(free)}"></iframe>'
    (folder / "phone.html").write_text(f"<!doctype html><title></title><body style='margin:0'>{frame}{PROBE}</body>")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    flags += ["--virtual-time-budget=3000", "--window-size=1400,900", "--hide-scrollbars", "--dump-dom"]
    command = [BROWSER, *flags, (folder / "phone.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout, re.S)
    assert title, done.stderr[-500:]
    return dict(json.loads(unescape(title[1])))


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
def test_nothing_scrolls_sideways_on_a_phone(many: tnmars.reporting.Report, tmp_path: Path) -> None:
    told = framed(page(slow(many)), tmp_path)
    assert told["view"] == 390
    assert told["wide"] == 390
    assert told["stacks"] == 1 + 2 * 6
    assert told["tables"] == 0
    assert told["outside"] == []
    assert told["touching"] == []


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
@pytest.mark.parametrize("wide", [600, 1000, 1280])
def test_figures_stay_inside_their_cards(many: tnmars.reporting.Report, tmp_path: Path, wide: int) -> None:
    told = framed(page(slow(many)), tmp_path, wide)
    assert told["view"] == wide
    assert told["touching"] == []


@pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome is installed")
def test_sideways_scrolling_would_be_seen(many: tnmars.reporting.Report, tmp_path: Path) -> None:
    wide = page(many).replace("</main>", '<p style="width:700px">x</p></main>')
    told = framed(wide, tmp_path)
    assert told["wide"] == 712 and told["outside"] == ["x"]


def test_the_command_names_layers_that_are_not_compared(
    layer: tnmars.TNModule, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tnmars.save(nn.ModuleDict({"a": layer, "b": deepcopy(layer)}), tmp_path / "both")
    tnmars.save(nn.ModuleDict({"a": layer}), tmp_path / "one")
    files = [str(tmp_path / name) for name in ("both", "one")]
    assert cli.run(["report", *files, "-o", str(tmp_path / "r.html"), "--no-measure"]) == 0
    assert "\ncompiled only before, and so not shown: b\nwrote" in capfd.readouterr().out
