"""A program that reads freed memory is stopped with a sentence.

A freed weight has a shape and no memory (14.4). Some operations on it raise; `sum`, `*`, `clone` and `copy_` read where
nothing is, and the process dies without a word: on ranks that are threads, the notebook's kernel.

    with NoFreedMemory():
        model(x).sum().backward()       RuntimeError, forward and backward, before the operation runs
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class NoFreedMemory(TorchDispatchMode):
    """Inside the `with`, whatever is about to read or write memory that is not there is a RuntimeError."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, for the reason that given/meter.py has."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
        gone = next((leaf for leaf in leaves if not here(leaf)), None)
        try:
            if gone is None or _shape_alone(func):
                return func(*args, **kwargs)
        except RuntimeError:
            if gone is None:
                raise
        # Above, since some views of nothing are refused by torch itself, in words of strides.
        raise RuntimeError(
            f"{func.overloadpacket.__name__} reads a weight of shape {list(gone.shape)} whose memory is freed: gather "
            f"it before it is used, and free it when nobody needs it any more"
        ) from None


def here(tensor: torch.Tensor) -> bool:
    """Whether the memory of all its numbers is there. What is not strided has none to look at."""
    if tensor.layout != torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return True
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _shape_alone(func) -> bool:
    """Whether an operation looks at shapes and types alone: views, and new tensors of a shape."""
    name = func.overloadpacket.__name__
    return func.is_view or name.startswith("new_") or name.endswith("_like") or name in ("resize_", "set_")
