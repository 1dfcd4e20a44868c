"""Tables of what a weight can do: the kinds of layer, the roles of open edges, and the options of each kind.

The graph's rules, the spec reader and the JSON Schema all read them, so that a new role or option is one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Role(str, Enum):
    """What an edge is for. A bond joins cores; every other role belongs to a mode, which is an open edge.

    A role equals its text, so that `"in"` may be given for `Role.IN`.

    Attributes:
        GROUP: Groups of features or channels, which input, cores and output share.
        IN: Input features or channels.
        LOOKUP: Rows of an embedding table.
        PATCH: Input channels times all taps of a convolution, in the order of `torch.nn.Unfold`.
        KERNEL: Taps of a convolution.
        OUT: Output features or channels.
        FREE: Axes of a plain tensor.
        BOND: Joins two or more cores; its size is what users call a rank.

    Example:
        >>> Role("in") is Role.IN, Role.OUT == "out"
        (True, True)
    """

    GROUP = "group"
    IN = "in"
    LOOKUP = "lookup"
    PATCH = "patch"
    KERNEL = "kernel"
    OUT = "out"
    FREE = "free"
    BOND = "bond"

    def __str__(self) -> str:
        return self.value


MODE_ROLES = tuple(role for role in Role if role is not Role.BOND)

ROLE_MEANING = {
    Role.GROUP: "groups that input and output share, slowest on both: each has its own block of the weight",
    Role.IN: "input features or channels; their product is the input size, first mode slowest",
    Role.LOOKUP: "rows of an embedding table; their product is the vocabulary",
    Role.PATCH: "input channels times all taps of a convolution, in torch's unfold order",
    Role.KERNEL: "taps of a convolution: one spatial axis each, or several flattened together",
    Role.OUT: "output features or channels; their product is the output size, first mode slowest",
    Role.FREE: "axes of a plain tensor",
}


@dataclass(frozen=True)
class Option:
    """A setting of a layer, named as in torch. `takes` says which values, see `tnmars.graph.options`."""

    name: str
    takes: str
    default: object
    meaning: str


STRIDE = Option("stride", "axes", 1, "the step between output positions, one number or one per spatial axis")
PADDING = Option(
    "padding",
    "padding",
    0,
    "entries added on each side, one number or one per spatial axis, or 'same' or 'valid'",
)
PADDING_MODE = Option(
    "padding_mode", "border", "zeros", "what is around the input: 'zeros', 'reflect', 'replicate' or 'circular'"
)
BORDERS = ("zeros", "reflect", "replicate", "circular")
"""The ways to pad the input of a convolution."""
CUT = Option("padding", "margins", 0, "entries cut off on each side of the output, one number or one per spatial axis")
OUTPUT_PADDING = Option(
    "output_padding", "margins", 0, "entries added at the end of each output axis, less than stride or dilation"
)
DILATION = Option("dilation", "axes", 1, "the distance between taps, one number or one per spatial axis")
BIAS = Option("bias", "flag", True, "true or false, whether a bias is added to the output")
PADDING_IDX = Option("padding_idx", "index", None, "the number of the row that stays zero and gets no gradient")
MODE = Option("mode", "bag", None, "'sum', 'mean' or 'max' of the rows of each bag; without it, each row by itself")
BAGS = ("sum", "mean", "max")
"""The ways to combine the rows of a bag."""

MAX_NORM = Option(
    "max_norm", "norm", None, "the norm that a looked-up row has at most; longer ones are shortened to it"
)
NORM_TYPE = Option("norm_type", "order", 2.0, "the order of the norm of max_norm, at least 1")
SCALE_GRAD = Option(
    "scale_grad_by_freq", "flag", False, "whether gradients are divided by how often a row is looked up"
)
LAST_OFFSET = Option("include_last_offset", "flag", False, "whether offsets of bags end with the number of tokens")


@dataclass(frozen=True)
class Kind:
    """What a weight does: which roles its modes have, which of its axes may be padded, and which options it takes.

    `needs` lists groups of roles, of each of which at least one must be present; `may` lists the optional roles.
    `sized` lists the roles whose flat axis may be shorter than the product of its modes; the rest is padding.
    `layout` is torch's order of the weight's axes, where `KERNEL` stands for all spatial ones; if it is empty, the
    weight has one axis per mode.
    """

    name: str
    needs: tuple[tuple[Role, ...], ...]
    may: tuple[Role, ...]
    sized: tuple[Role, ...]
    layout: tuple[Role, ...]
    options: tuple[Option, ...]
    meaning: str
    has_operands: bool = False
    """Whether the inputs and the output are named and laid out by the user."""
    is_transposed: bool = False
    """Whether an input position gives to the output positions under the taps, instead of an output position taking."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Every role that a mode of this kind may have, in canonical order."""
        found = {role for group in self.needs for role in group} | set(self.may)
        return tuple(role for role in MODE_ROLES if role in found)

    @property
    def has_bias(self) -> bool:
        return BIAS in self.options

    @property
    def is_spatial(self) -> bool:
        return Role.KERNEL in self.roles


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "linear",
            ((Role.IN, Role.GROUP), (Role.OUT, Role.GROUP)),
            (),
            (Role.IN, Role.OUT),
            (Role.OUT, Role.IN),
            (BIAS,),
            "torch.nn.Linear",
        ),
        Kind(
            "conv",
            ((Role.IN, Role.PATCH, Role.GROUP), (Role.OUT, Role.GROUP)),
            (Role.KERNEL,),
            (Role.IN, Role.OUT),
            (Role.OUT, Role.IN, Role.KERNEL),
            (STRIDE, PADDING, DILATION, BIAS, PADDING_MODE),
            "torch.nn.Conv1d, Conv2d or Conv3d",
        ),
        Kind(
            "conv_transpose",
            ((Role.IN, Role.GROUP), (Role.OUT, Role.GROUP)),
            (Role.KERNEL,),
            (Role.IN, Role.OUT),
            (Role.IN, Role.OUT, Role.KERNEL),
            (STRIDE, CUT, OUTPUT_PADDING, DILATION, BIAS),
            "torch.nn.ConvTranspose1d, ConvTranspose2d or ConvTranspose3d",
            is_transposed=True,
        ),
        Kind(
            "embedding",
            ((Role.LOOKUP,), (Role.OUT,)),
            (),
            (Role.LOOKUP, Role.OUT),
            (Role.LOOKUP, Role.OUT),
            (PADDING_IDX, MODE, MAX_NORM, NORM_TYPE, SCALE_GRAD, LAST_OFFSET),
            "torch.nn.Embedding, or with a mode torch.nn.EmbeddingBag",
        ),
        Kind("tensor", ((Role.FREE,),), (), (), (), (), "the weight itself, one axis per mode"),
        Kind(
            "map",
            ((Role.IN, Role.GROUP),),
            (Role.OUT,),
            (),
            (),
            (),
            "any multilinear map of named inputs, such as bilinear pooling",
            has_operands=True,
        ),
    )
}
