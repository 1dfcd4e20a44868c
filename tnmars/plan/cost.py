"""What a step of a contraction costs in time: a frozen value with shipped constants, replaced by `tnmars calibrate`.

The form of the model is from measurements on a CPU: a fixed cost per call, multiply-adds at a rate that falls for
skinny matrices, and bytes moved. Counts of operations are exact; seconds are estimates.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class CostModel:
    """The constants of a machine, in seconds, bytes and floating-point operations per second."""

    peak: float = 70e9
    """Large float32 matrix products, one thread."""
    half_rows: float = 4.0
    half_columns: float = 16.0
    half_depth: float = 8.0
    """Extents of a matrix product at which half the peak is left."""
    conv_peak: float = 60e9
    half_channels: float = 8.0
    call: float = 3e-6
    """One matrix product, whatever its size."""
    batched_call: float = 5e-6
    small_product: float = 0.25e-6
    """Each product of a batch of them."""
    conv_call: float = 25e-6
    element_call: float = 3e-6
    view_call: float = 1.5e-6
    copy_call: float = 4e-6
    copy_rate: float = 4.5e9
    """A permuting copy, bytes read and written."""
    run_cost: float = 4e-9
    """Each contiguous run of a permuting copy."""
    rate: float = 12e9
    """Bytes read and written by a product or an elementwise step."""
    fresh_bytes: float = 32e6
    fresh_rate: float = 2.7e9
    """Memory above `fresh_bytes` is handed out anew by the system, page by page."""
    gather_rate: float = 3e9
    item: int = 4

    def matmul(self, batch: int, rows: int, columns: int, depth: int) -> float:
        """`batch` products of rows x depth with depth x columns."""
        operations = 2.0 * batch * rows * columns * depth
        if operations == 0:
            return self.call
        small, large = sorted((rows, columns))
        rate = self.peak * small / (small + self.half_columns) * large / (large + self.half_rows)
        rate *= depth / (depth + self.half_depth)
        moved = self.item * batch * (rows * depth + depth * columns + rows * columns)
        calls = self.call if batch == 1 else self.batched_call + batch * self.small_product
        return calls + operations / rate + moved / self.rate + self.fresh(batch * rows * columns)

    def conv(self, macs: int, moved: int, channels: int) -> float:
        """A convolution with so many multiply-adds, elements read and written, and its smaller number of channels."""
        rate = self.conv_peak * channels / (channels + self.half_channels)
        return self.conv_call + 2.0 * macs / rate + self.item * moved / self.rate

    def elementwise(self, moved: int, out: int) -> float:
        """A broadcast multiply or a sum that reads and writes so many elements."""
        return self.element_call + self.item * moved / self.rate + self.fresh(out)

    def copy(self, elements: int, run: int) -> float:
        """A permuting copy whose contiguous runs have `run` elements."""
        moved = 2.0 * self.item * elements
        return self.copy_call + moved / self.copy_rate + elements / max(run, 1) * self.run_cost + self.fresh(elements)

    def gather(self, elements: int) -> float:
        """Rows taken from a table, so many elements in all."""
        return self.copy_call + 2.0 * self.item * elements / self.gather_rate + self.fresh(elements)

    def fresh(self, elements: int) -> float:
        """What it costs that the memory of a result is new."""
        size = self.item * elements
        return size / self.fresh_rate if size > self.fresh_bytes else 0.0

    def to_json(self) -> dict[str, float]:
        return asdict(self)
