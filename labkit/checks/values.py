"""Values as bytes: how inputs go to the ranks and answers come back, without pickle.

`pack` turns tensors, numbers, text and containers of them into one byte string (JSON for the tree, raw bytes for the
tensors); `unpack` builds plain ones from it and nothing else. So what the judge holds are its own objects: no method,
no `__eq__`, no shared memory of the student's comes along. The format is what a grading sandbox can let out:
size-capped, every length checked, nothing executed.

What changes on the way: a named tuple becomes a dict of its fields, a NumPy array a tensor, a NumPy scalar a number, a
tensor loses its gradient and device. Anything else becomes `Opaque`, which says what it was.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import torch

from labkit.errors import LabError

MAX_BYTES = 256 * 2**20  # one call's values; the course's largest are a few MiB
MAX_HEADER = 4 * 2**20  # of these for all that is no tensor: JSON of 64 MB becomes gigabytes of lists
MAX_BITS = 256  # of an int
MAX_DIMS = 64  # torch can do next to nothing with more
MAX_DEPTH = 20
_DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    )
}
_NOTHING = torch.empty(0, dtype=torch.uint8)  # frombuffer refuses an empty one
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class Opaque:
    """Something that is neither number, text, tensor nor a container of them. `kind` says what it was."""

    kind: str


def pack(value: Any) -> bytes:
    """`value` as bytes: 8 bytes length of the JSON header, the header, the tensors' memory one after another."""
    arrays: list[torch.Tensor] = []
    tree = _tree(value, arrays, 0)
    header = json.dumps({"tree": tree, "arrays": [[_NAMES[a.dtype], list(a.shape)] for a in arrays]}).encode()
    blobs = [a.reshape(-1).view(torch.uint8).numpy().tobytes() if a.numel() else b"" for a in arrays]
    if len(header) > MAX_HEADER:
        raise LabError(
            f"lists and texts of {len(header)} bytes are too much for one call; at most {MAX_HEADER} can "
            f"travel: use tensors"
        )
    size = 8 + len(header) + sum(map(len, blobs))
    if size > MAX_BYTES:
        raise LabError(f"{size} bytes are too much for one call; at most {MAX_BYTES} can travel")
    return b"".join([len(header).to_bytes(8, "little"), header, *blobs])


def unpack(data: bytes) -> Any:
    """The inverse. ValueError for bytes that `pack` did not make; nothing in them is executed."""
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes")
        start = 8 + int.from_bytes(data[:8], "little")
        if start > 8 + MAX_HEADER:
            raise ValueError("too much text")
        header = json.loads(data[8:start])
        arrays = []
        for name, shape in header["arrays"]:
            # Also for an empty one: torch makes it, and fails later, in whoever compares it.
            if (
                not all(type(n) is int and n >= 0 for n in shape)
                or len(shape) > MAX_DIMS
                or math.prod(max(1, n) for n in shape) > MAX_BYTES
            ):
                raise ValueError("shape")
            dtype = _DTYPES[name]
            end = start + math.prod(shape) * dtype.itemsize
            if end > len(data):
                raise ValueError("too short")
            flat = torch.frombuffer(bytearray(data[start:end]), dtype=torch.uint8) if end > start else _NOTHING
            arrays.append(flat.clone().view(dtype).reshape(shape))
            start = end
        if start != len(data):
            raise ValueError("too long")
        return _value(header["tree"], arrays, 0)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"these bytes are not packed values ({type(error).__name__}: {error})") from None


def _tree(value: Any, arrays: list[torch.Tensor], depth: int) -> Any:
    kind = type(value)
    if depth > MAX_DEPTH:
        return {"opaque": "values nested more than 20 deep"}
    if value is None or kind in (bool, str):
        return value
    if isinstance(value, int):
        # As text: JSON readers elsewhere may round large integers.
        return (
            {"int": str(int(value))}
            if abs(int(value)) < 1 << MAX_BITS
            else {"opaque": f"an int of more than {MAX_BITS} bits"}
        )
    if isinstance(value, float):
        return {"float": float(value).hex()}
    if isinstance(value, torch.Tensor):
        return _tensor(value, arrays)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"dict": [[str(k), _tree(v, arrays, depth + 1)] for k, v in zip(value._fields, value)]}
    if isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [_tree(v, arrays, depth + 1) for v in value]}
    if isinstance(value, dict):
        return {"dict": [[_tree(k, arrays, depth + 1), _tree(v, arrays, depth + 1)] for k, v in value.items()]}
    if kind.__module__ == "numpy":
        try:
            if getattr(value, "ndim", 0):
                return _tensor(torch.as_tensor(value), arrays)
            return _tree(value.item(), arrays, depth + 1)
        except (TypeError, AttributeError):
            pass
    return {"opaque": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")}


def _tensor(tensor: torch.Tensor, arrays: list[torch.Tensor]) -> Any:
    try:
        plain = tensor.detach().cpu().to_dense() if tensor.layout != torch.strided else tensor.detach().cpu()
        plain = plain.resolve_conj().resolve_neg().contiguous()
        if plain.dtype not in _NAMES:
            return {"opaque": f"a tensor of {plain.dtype}"}
        # Its memory must be there (a meta tensor has none), and before the header is written.
        plain.reshape(-1)[:1].tolist()
    except Exception as error:  # a tensor subclass may raise anything
        return {"opaque": f"a tensor that could not be read ({type(error).__name__})"}
    arrays.append(plain)
    return {"tensor": len(arrays) - 1}


def _value(tree: Any, arrays: list[torch.Tensor], depth: int) -> Any:
    if depth > MAX_DEPTH + 2:
        raise ValueError("too deep")
    if tree is None or isinstance(tree, (bool, str)):
        return tree
    ((kind, content),) = tree.items()
    if kind == "int":
        number = int(content)
        if abs(number) >= 1 << MAX_BITS:
            raise ValueError("a large int")  # arithmetic with floats would overflow
        return number
    if kind == "float":
        return float.fromhex(content)
    if kind == "tensor":
        return arrays[content]
    if kind in ("list", "tuple"):
        values = [_value(v, arrays, depth + 1) for v in content]
        return values if kind == "list" else tuple(values)
    if kind == "dict":
        return {_value(k, arrays, depth + 1): _value(v, arrays, depth + 1) for k, v in content}
    if kind == "opaque":
        return Opaque(str(content))
    raise ValueError(f"unknown kind {kind!r}")
