"""Values as bytes: how inputs go to the ranks and answers come back, without pickle.

`pack` turns tensors, numbers, text and containers of them into one byte string (JSON for the tree, raw bytes for the
tensors); `unpack` builds plain ones from it and nothing else. So what the judge holds are its own objects: no method,
no `__eq__`, no shared memory of the student's comes along. The format is what a grading sandbox can let out:
size-capped, every length checked, nothing executed.

What changes on the way: a named tuple becomes a dict of its fields, a NumPy array a tensor, a NumPy scalar a number, a
tensor loses its gradient and device. Anything else becomes `Opaque`, which says what it was.
"""

from __future__ import annotations

from typing import Any

import torch

from labkit.checks import packing
from labkit.checks.packing import Opaque

__all__ = ["Opaque", "pack", "unpack"]

_FLOATS = torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
_WHOLE = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint16, torch.uint8, torch.bool
_DTYPES = {str(d).removeprefix("torch."): d for d in (*_FLOATS, *_WHOLE, torch.complex64, torch.complex128)}
_NOTHING = torch.empty(0, dtype=torch.uint8)  # frombuffer refuses an empty one
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def pack(value: Any) -> bytes:
    """`value` as bytes (labkit.checks.packing). LabError if it is too much for one call."""
    return packing.pack(value, _Tensors())


def unpack(data: bytes) -> Any:
    """The inverse. ValueError for bytes that `pack` did not make."""
    return packing.unpack(data, _Tensors())


class _Tensors:
    """Arrays are tensors on this side, and what is a NumPy array becomes one."""

    def __init__(self) -> None:
        self.sizes = {name: dtype.itemsize for name, dtype in _DTYPES.items()}

    def take(self, value: Any) -> tuple[str, list[int], bytes] | Opaque | None:
        if type(value).__module__ == "numpy" and getattr(value, "ndim", False):
            try:
                value = torch.as_tensor(value)
            except TypeError:
                return Opaque(f"numpy.{type(value).__qualname__}")
        if not isinstance(value, torch.Tensor):
            return None
        try:
            plain = value.detach().cpu().to_dense() if value.layout != torch.strided else value.detach().cpu()
            plain = plain.resolve_conj().resolve_neg().contiguous()
            if plain.dtype not in _NAMES:
                return Opaque(f"a tensor of {plain.dtype}")
            # Its memory must be there: a meta tensor has none.
            data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        except Exception as error:  # a tensor subclass may raise anything
            return Opaque(f"a tensor that could not be read ({type(error).__name__})")
        return _NAMES[plain.dtype], list(plain.shape), data

    def make(self, dtype: str, shape: list[int], data: bytes) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else _NOTHING
        return flat.clone().view(_DTYPES[dtype]).reshape(shape)
