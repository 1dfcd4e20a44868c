"""Makes the picture of a report for the docs: a short run of the paper's network on MNIST, cut, and photographed.

Run as `python docs/images/report.py [DATA]`, with the folder of data sets; it takes a few minutes, and needs Chromium.
The run is far shorter than the experiment (`tnmars reproduce mnist-2fc`), so its figures are no result.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch

import tnmars
from tnmars.experiments.idx import mnist
from tnmars.experiments.loop import Run, Settings
from tnmars.experiments.mnist import Digits, network

PAGE = Path("build/report.html")
PICTURE = Path(__file__).with_name("report.png")


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    PAGE.parent.mkdir(exist_ok=True)
    task = Digits(network("soft"), mnist(sys.argv[1] if len(sys.argv) > 1 else None))
    settings = Settings(epochs=24, lr_decay=0.9, temperature_decay=0.88)
    history = Run(task, settings).train()
    found = tnmars.report(
        task.model, tnmars.prune(task.model), PAGE, history=history, title="MNIST, two tensor-train layers"
    )
    print({layer.name: {bond.shown: bond.after for bond in layer.bonds} for layer in found.layers}, history[-1])
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if browser is None:
        sys.exit("no Chromium: no picture")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,1760"]
    subprocess.run([browser, *flags, f"--screenshot={PICTURE}", PAGE.resolve().as_uri()], check=True)


if __name__ == "__main__":
    main()
