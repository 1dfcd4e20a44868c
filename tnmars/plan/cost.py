"""What a step of a contraction costs in time: a frozen value with shipped constants, replaced by `tnmars calibrate`.

The shape of the model comes from measurements on a CPU: a fixed cost per call, multiply-adds at a rate that falls for
skinny matrices, and bytes moved. Each type of device has its own implementation. Counts of operations are exact;
seconds are estimates.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from tnmars.arguments import check_arguments
from tnmars.errors import Problem, TnmarsError

MAX_BYTES = 100_000
"""The number of bytes of a file that are read for a cost model, which has far fewer."""
VECTOR = 64
"""The bytes that a vector instruction of the processor takes."""
SINGLE = 4
"""The bytes of a float32. The rates of the model are those of numbers of this size."""
NUMBERS: Mapping[str, tuple[int, int]] = {
    "float16": (2, 1),
    "bfloat16": (2, 1),
    "float32": (4, 1),
    "float64": (8, 1),
    "complex64": (4, 2),
    "complex128": (8, 2),
}
"""By the name of a dtype the bytes of a real number, and how many real numbers a number has."""


@dataclass(frozen=True)
class CostModel:
    """The constants of a machine, from which the time of every step of a plan is estimated.

    `tnmars calibrate` measures them and keeps them for `tnmars.compile`; the defaults are those of a server CPU on one
    thread. You rarely set them by hand: pass `tnmars.CostModel()` as `compile(model=...)` to plan the same way on every
    machine.

    Args:
        peak: Floating-point operations per second of a large float32 matrix product.
        half_rows: The number of rows of a result at which a product reaches half of `peak`.
        half_columns: The same for its columns.
        half_depth: The same for the axis that is summed.
        narrow: The share of the rate that is left if the rows of a result are shorter than a vector register.
        conv_peak: Floating-point operations per second of a large convolution.
        half_channels: The number of channels at which a convolution reaches half of `conv_peak`.
        grouped: The time of a convolution in groups relative to one of as many more images with the channels of a
            group.
        call: Seconds of one matrix product, whatever its size.
        batched_call: Seconds of one batch of matrix products, whatever its size.
        small_product: Seconds that each product of a batch adds.
        conv_call: Seconds of one convolution, whatever its size.
        element_call: Seconds of one elementwise step, whatever its size.
        view_call: Seconds of one view.
        copy_call: Seconds of one permuting copy, whatever its size.
        copy_rate: Bytes per second of a permuting copy whose innermost loop runs along memory, read and written.
        stride_cost: Seconds for each number of a permuting copy whose innermost loop jumps in memory.
        run_cost: Seconds for each round of the innermost loop of a permuting copy.
        rate: Bytes per second that a product or an elementwise step reads and writes.
        fresh_bytes: The size above which the system hands out the memory of a result page by page.
        fresh_rate: Bytes per second at which such memory is first touched.
        large_bytes: The size above which the C library returns memory to the system each time.
        large_rate: Bytes per second at which such memory is first touched.
        grad_call: Seconds that autograd adds to every step, views included, in both passes together.
        gather_rate: Bytes per second of rows taken from a table.
        layer_call: Seconds that a compiled layer takes around its steps, in excess of torch's own layer.
        step_call: Seconds that a training step takes around its steps, for any layer.
        parameter_call: Seconds that it takes for each parameter, whatever its size.
        item: Bytes per real number. Arithmetic with 8 bytes takes twice as long as with 4.
        parts: Real numbers per number: 1, or 2 for complex ones, whose multiply-add takes four real ones. `compile`
            sets `item` and `parts` by the dtype.

    Example:
        >>> import tnmars
        >>> slow = tnmars.CostModel(peak=1e9)
        >>> slow.matmul(1, 64, 64, 64) > tnmars.CostModel().matmul(1, 64, 64, 64)
        True
    """

    peak: float = 85e9
    half_rows: float = 2.0
    half_columns: float = 1.5
    half_depth: float = 4.0
    narrow: float = 0.4
    conv_peak: float = 110e9
    half_channels: float = 25.0
    grouped: float = 0.92
    call: float = 2e-6
    batched_call: float = 4e-6
    small_product: float = 0.15e-6
    conv_call: float = 15e-6
    element_call: float = 2e-6
    view_call: float = 1e-6
    copy_call: float = 3e-6
    copy_rate: float = 20e9
    stride_cost: float = 1.3e-9
    run_cost: float = 6e-9
    rate: float = 40e9
    fresh_bytes: float = 4e6
    fresh_rate: float = 8e9
    large_bytes: float = 32e6
    large_rate: float = 2.7e9
    grad_call: float = 7e-6
    gather_rate: float = 25e9
    layer_call: float = 0.6e-6
    step_call: float = 15e-6
    parameter_call: float = 3e-6
    item: int = 4
    parts: int = 1

    def __post_init__(self) -> None:
        check_arguments(CostModel, vars(self))
        if (self.item, self.parts) not in NUMBERS.values():
            text = f"item is {self.item} and parts is {self.parts}, but no type of torch's layers has such numbers."
            raise TnmarsError(Problem(text, "item is 2, 4 or 8 bytes; parts is 1, or 2 for complex numbers."))

    def for_numbers(self, dtype: str) -> CostModel:
        """The same machine, computing with a dtype such as `float64`. 16-bit numbers are taken to compute as float32.

        >>> CostModel().for_numbers("complex128").bytes
        16
        """
        if dtype not in NUMBERS:
            raise TnmarsError(f"dtype is '{dtype}', but must be one of {', '.join(NUMBERS)}.")
        item, parts = NUMBERS[dtype]
        return replace(self, item=item, parts=parts)

    @property
    def bytes(self) -> int:
        """Bytes per number."""
        return self.item * self.parts

    @property
    def _operations(self) -> float:
        """The work of a multiply-add, in operations of float32."""
        return 2.0 * self.parts**2 * max(self.item / SINGLE, 1.0)

    @property
    def _vector(self) -> int:
        """The real numbers that a vector instruction takes. 16-bit numbers are widened to float32 first."""
        return VECTOR // max(self.item, SINGLE)

    def matmul(self, batch: int, rows: int, columns: int, depth: int) -> float:
        """`batch` products of rows x depth with depth x columns."""
        operations = self._operations * batch * rows * columns * depth
        if operations == 0:
            return self.call
        rate = self.peak * self._shape_share(rows, columns) * depth / (depth + self.half_depth)
        moved = self.bytes * batch * (rows * depth + depth * columns + rows * columns)
        calls = self.call if batch == 1 else self.batched_call + batch * self.small_product
        return calls + operations / rate + moved / self.rate + self.fresh(batch * rows * columns)

    def _shape_share(self, rows: int, columns: int) -> float:
        """The share of the peak that the shape of a result leaves. Its rows are computed a vector at a time."""
        if rows == 1 or columns == 1:  # a matrix and a vector, whichever comes first
            return 1 / (1 + self.half_columns) * max(rows, columns) / (max(rows, columns) + self.half_rows)
        vectors = -(-columns // self._vector) * self._vector
        share = rows / (rows + self.half_rows) * columns / (vectors + self.half_columns)
        return share * self.narrow if columns < self._vector else share

    def product(self, batch: int, rows: int, columns: int, depth: int, *, grad: bool = False) -> float:
        """The same with the two products of its backward pass, if gradients are needed."""
        forward = self.matmul(batch, rows, columns, depth)
        if not grad:
            return forward
        backward = self.matmul(batch, rows, depth, columns) + self.matmul(batch, depth, columns, rows)
        return forward + backward + self.grad_call

    def conv(self, macs: int, moved: int, channels: int) -> float:
        """A convolution, by its multiply-adds, the elements it reads and writes, and its smaller number of channels."""
        rate = self.conv_peak * channels / (channels + self.half_channels)
        return self.conv_call + self._operations * macs / rate + self.bytes * moved / self.rate

    def elementwise(self, moved: int, out: int) -> float:
        """A broadcast product or a sum that reads and writes `moved` elements, `out` of them new."""
        return self.element_call + self.bytes * moved / self.rate + self.fresh(out)

    def copy(self, elements: int, run: int, jumps: bool = False) -> float:
        """A permuting copy whose innermost loop has `run` elements, and `jumps` if the source lies in another order."""
        moving = elements * self.stride_cost if jumps else 2.0 * self.bytes * elements / self.copy_rate
        return self.copy_call + moving + elements / max(run, 1) * self.run_cost + self.fresh(elements)

    def gather(self, elements: int) -> float:
        """Rows taken from a table, `elements` numbers in all."""
        return self.copy_call + 2.0 * self.bytes * elements / self.gather_rate + self.fresh(elements)

    def fresh(self, elements: int) -> float:
        """The cost of first touching the memory of a result."""
        size = self.bytes * elements
        if size > self.large_bytes:
            return size / self.large_rate
        return size / self.fresh_rate if size > self.fresh_bytes else 0.0

    def to_json(self) -> dict[str, float]:
        return asdict(self)


TILE = 64
"""The rows and columns of a result that one block of threads of an accelerator computes."""


@dataclass(frozen=True)
class AcceleratorModel(CostModel):
    """The constants of a GPU or another accelerator: results in tiles, calls that only queue work, memory kept ready.

    The defaults are rough figures from data sheets, for float32. Nothing was measured: `calibrate` on the device does.

    Example:
        >>> from tnmars.plan.cost import AcceleratorModel
        >>> model = AcceleratorModel()
        >>> model.matmul(1, 4096, 33, 4096) > 0.9 * model.matmul(1, 4096, 64, 4096)
        True
    """

    peak: float = 15e12
    half_rows: float = 64.0
    half_columns: float = 64.0
    half_depth: float = 64.0
    narrow: float = 1.0
    conv_peak: float = 12e12
    half_channels: float = 64.0
    grouped: float = 1.0
    call: float = 8e-6
    batched_call: float = 8e-6
    small_product: float = 2e-9
    conv_call: float = 15e-6
    element_call: float = 6e-6
    copy_call: float = 6e-6
    copy_rate: float = 1e12
    stride_cost: float = 2e-11
    run_cost: float = 1e-12
    rate: float = 1.2e12
    gather_rate: float = 5e11

    def _shape_share(self, rows: int, columns: int) -> float:
        """A tile takes as long whether it is full or not."""
        tiled = [-(-side // TILE) * TILE for side in (rows, columns)]
        share = rows / (tiled[0] + self.half_rows) * columns / (tiled[1] + self.half_columns)
        return max(share, 1e-6)

    def fresh(self, elements: int) -> float:
        """Torch's allocator keeps the memory of the device."""
        return 0.0


MODELS: Mapping[str, type[CostModel]] = {"cpu": CostModel, "meta": CostModel}
"""The implementation of the cost model by the type of a device; others are accelerators."""


def shipped_model(device: str = "cpu") -> CostModel:
    """The shipped model for a type of device, such as `cpu` or `cuda`."""
    return MODELS.get(device, AcceleratorModel)()


def cache_file(device: str = "cpu") -> Path:
    """Where the calibrated model of this machine is kept for a type of device, in the user's cache folder."""
    try:
        root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:
        hint = "Set HOME or XDG_CACHE_HOME to a folder."
        raise TnmarsError(Problem("this user has no home folder, and so no cache.", hint)) from None
    name = "cost_model.json" if device in MODELS else f"cost_model_{device}.json"
    return Path(root) / "tnmars" / name


def machine_model(device: str = "cpu") -> CostModel:
    """The calibrated model of this machine for a type of device if there is one, else the shipped one.

    `TNMARS_COST_MODEL=shipped` asks for the shipped one, as tests do.
    """
    if os.environ.get("TNMARS_COST_MODEL") == "shipped":
        return shipped_model(device)
    try:
        path = cache_file(device)
        written = path.stat().st_mtime_ns
    except (OSError, TnmarsError):
        return shipped_model(device)
    return _read(path, written, shipped_model(device))


@lru_cache(maxsize=8)
def _read(path: Path, written: int, shipped: CostModel) -> CostModel:
    """The model in a file, as of the time when the file was written; constants that it lacks are the shipped ones."""
    try:
        with path.open("rb") as stream:
            found = json.loads(stream.read(MAX_BYTES))
        known = {entry.name for entry in fields(CostModel)} - {"item", "parts"}
        constants: dict[str, Any] = {key: float(value) for key, value in found.items() if key in known}
        if not all(isfinite(value) and value > 0 for value in constants.values()):
            raise ValueError("a constant is not above 0")
        return replace(shipped, **constants)
    except (OSError, ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        raise TnmarsError(f"{path}: must be a cost model; run 'tnmars calibrate' again, or remove the file.") from None
