"""The constants of the path: how long stages are, how much a cut removes, when to stop. They need no tuning."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite

from tnmars.arguments import own_fields
from tnmars.errors import Problem, TnmarsError


@dataclass(frozen=True)
class Staircase:
    """The settings of `tnmars.shrink` and `tnmars.Stages`. One set of values worked on every task that was tried.

    Args:
        rate: The highest learning rate of a tensor, relative to the root mean square of its entries. It is computed
            again for every stage.
        factor: A cut keeps at least this share of the parameters of the compiled layers (of their multiply-adds, with
            a budget in MACs or milliseconds), unless a single slice holds more; between 0 and 1.
        first: The number of steps of a stage, for a model as large as at the start. Smaller models train longer, in
            inverse proportion to their size. The very first stage is twice as long.
        ramp: The number of steps over which the rate grows at the start of a stage; at most a fifth of the stage.
        accept: A point is accepted if its score is at most this many standard errors below the best.
        stop: The path ends once a score is more than this many standard errors below the best. With `max_drop`, it
            ends at `stop / accept` times that drop.
        finish: The number of steps of the last stage, in which a point that is taken is trained once more, relative to
            those of an ordinary stage of its size; 0 for no such stage.
        decay: How much all cores shrink in a step, relative to the step: the weight decay of AdamW, in units that do
            not depend on the size of a core's entries or on that of the loss.
        prior: The factor of the squared entries of all cores in the loss, times the number of training samples: that of
            a normal prior with standard deviation 10. It only matters where the data leave a choice, as between the
            many networks with cycles that hold the same weight: it prefers one that needs few slices.
        vectors: What counts as the size of a vector's entries, such as those of a bias.
        other_rate: The highest learning rate of all parameters outside of compiled layers, as it is. By default it is
            relative, as for cores.

    Raises:
        TnmarsError: If a setting is not a number in its range.

    Example:
        >>> Staircase(first=100).factor
        0.85
    """

    rate: float = 0.07
    factor: float = 0.85
    first: int = 200
    ramp: int = 50
    accept: float = 2.0
    stop: float = 5.0
    finish: float = 3.0
    decay: float = 0.01
    prior: float = 0.005
    vectors: float = 0.1
    other_rate: float | None = None

    def __post_init__(self) -> None:
        own_fields(self)
        for name, value in asdict(self).items():
            if name == "other_rate" and value is None:
                continue
            is_whole = name in ("first", "ramp")
            is_number = isinstance(value, int if is_whole else (int, float)) and not isinstance(value, bool)
            least = 1.0 if is_whole else 0.0
            if not is_number or not isfinite(value) or value < least or (name in ("rate", "factor") and value == 0):
                kind = "a whole number of at least 1" if is_whole else "a number of at least 0"
                kind = "a number above 0" if name == "rate" else kind
                kind = "a number above 0 and below 1" if name == "factor" else kind
                raise TnmarsError(f"{name} is {value!r}, but must be {kind}.")
        if self.factor >= 1:
            raise TnmarsError(f"factor is {self.factor!r}, but must be a number above 0 and below 1.")
        if self.stop < self.accept:
            raise TnmarsError(f"stop is {self.stop:g}, but must not be below accept, {self.accept:g}.")


def check_settings(given: object) -> Staircase:
    """The settings that a user gives; by default those of `Staircase`. Raises `TnmarsError`."""
    if given is None:
        return Staircase()
    if not isinstance(given, Staircase):
        text = f"settings is a {type(given).__name__}, but must be a tnmars.Staircase."
        raise TnmarsError(Problem(text, "Write settings=tnmars.Staircase(first=100)."))
    return given
