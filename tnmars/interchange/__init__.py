"""Interchange: cores from and to the objects of other libraries.

`from_...` returns a compiled layer with the same numbers, `to_...` an object of the other library. Which object a layer
becomes follows from its graph. A library is imported when one of its functions is called, and not before.

Example:
    >>> import torch, tnmars
    >>> cores = [torch.ones(1, 4, 2), torch.ones(2, 5, 1)]
    >>> layer = tnmars.interchange.from_core_list(cores)
    >>> layer.graph.dense_shape, len(tnmars.interchange.to_core_list(layer))
    ((4, 5), 2)
"""

from tnmars.interchange.core_lists import from_core_list as from_core_list
from tnmars.interchange.core_lists import to_core_list as to_core_list
from tnmars.interchange.quimb_networks import from_quimb as from_quimb
from tnmars.interchange.quimb_networks import to_quimb as to_quimb
from tnmars.interchange.tednet_layers import from_tednet as from_tednet
from tnmars.interchange.tednet_layers import to_tednet as to_tednet
from tnmars.interchange.tensorly_tensors import from_tensorly as from_tensorly
from tnmars.interchange.tensorly_tensors import to_tensorly as to_tensorly
from tnmars.interchange.tensorly_torch_layers import from_tensorly_torch as from_tensorly_torch
from tnmars.interchange.tensorly_torch_layers import to_tensorly_torch as to_tensorly_torch

__all__ = [
    "from_core_list",
    "from_quimb",
    "from_tednet",
    "from_tensorly",
    "from_tensorly_torch",
    "to_core_list",
    "to_quimb",
    "to_tednet",
    "to_tensorly",
    "to_tensorly_torch",
]
