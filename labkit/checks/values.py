"""Values as bytes: how inputs go to the ranks and answers come back, without pickle.

8 bytes length of a JSON header, the header, the arrays' memory in the order of their places in it. Every length is
checked, and nothing is executed. A named tuple becomes a dict, a NumPy scalar a number, a NumPy array a tensor (in a
process without torch all arrays are NumPy's); a tensor loses its gradient and device; anything else becomes `Opaque`.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from labkit.errors import LabError

if TYPE_CHECKING:
    import torch

MAX_BYTES = 256 * 2**20  # one call's values; the course's largest are a few MiB
MAX_HEADER = 4 * 2**20  # of these for all that is no array: JSON of 64 MB becomes gigabytes of lists
MAX_BITS = 256  # of an int
MAX_DIMS = 64  # torch can do next to nothing with more
MAX_DEPTH = 20
MAX_ITEMS = 100_000  # values in one call's: whoever reads them pays for each
SAME_HASH = 16  # keys of one dict with the same hash: a table of such keys takes the square of their number
# NumPy's dtypes that can travel.
PLAIN = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint16", "uint8", "bool")


@dataclass(frozen=True)
class Opaque:
    """Something that is neither number, text, array nor a container of them. `kind` says what it was."""

    kind: str


@functools.cache
def dtypes() -> dict[str, torch.dtype]:
    """The dtypes of tensors that can travel, by name."""
    import torch

    floats = torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
    whole = torch.int64, torch.int32, torch.int16, torch.int8, torch.uint16, torch.uint8, torch.bool
    return {str(d).removeprefix("torch."): d for d in (*floats, *whole, torch.complex64, torch.complex128)}


class Tensors:
    """Arrays are tensors on this side, and what is a NumPy array becomes one."""

    def __init__(self) -> None:
        self.sizes = {name: dtype.itemsize for name, dtype in dtypes().items()}

    def take(self, value: Any) -> tuple[str, list[int], bytes] | Opaque | None:
        """(dtype, shape, memory) of an array; Opaque for one that cannot travel; None for what is no array."""
        import torch

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
            name = str(plain.dtype).removeprefix("torch.")
            if name not in self.sizes:
                return Opaque(f"a tensor of {plain.dtype}")
            # Its memory must be there: a meta tensor has none.
            data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        except Exception as error:  # a tensor subclass may raise anything
            return Opaque(f"a tensor that could not be read ({type(error).__name__})")
        return name, list(plain.shape), data

    def make(self, dtype: str, shape: list[int], data: bytes) -> torch.Tensor:
        import torch

        # frombuffer refuses an empty buffer
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        return flat.clone().view(dtypes()[dtype]).reshape(shape)


class NumPy:
    """Arrays are NumPy's on this side, in a process without torch."""

    sizes: ClassVar = {name: np.dtype(name).itemsize for name in PLAIN}

    def take(self, value: Any) -> tuple[str, list[int], bytes] | Opaque | None:
        if not isinstance(value, np.ndarray):
            return None
        if value.dtype.name not in self.sizes:
            return Opaque(f"a NumPy array of {value.dtype}")
        little = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return value.dtype.name, list(value.shape), little.tobytes()

    def make(self, dtype: str, shape: list[int], data: bytes) -> np.ndarray:
        return np.frombuffer(bytearray(data), dtype=np.dtype(dtype)).reshape(shape)


class TooMuch(LabError):
    """More than one call can carry."""


def pack(value: Any, arrays: Tensors | NumPy | None = None) -> bytes:
    """`value` as bytes; arrays: None for tensors. TooMuch if it is more than one call can carry."""
    packer = _Packer(arrays or Tensors())
    header = json.dumps(packer.tree(value, 0)).encode()
    size = 8 + len(header) + sum(map(len, packer.memory))
    for amount, most, of, instead in (
        (packer.items, MAX_ITEMS, "values in lists", ": use tensors"),
        (len(header), MAX_HEADER, "bytes of lists and texts", ": use tensors"),
        (size, MAX_BYTES, "bytes", ""),
    ):
        if amount > most:
            raise TooMuch(f"{amount} {of} are too much for one call; at most {most} can travel{instead}")
    return b"".join([len(header).to_bytes(8, "little"), header, *packer.memory])


def unpack(data: bytes, arrays: Tensors | NumPy | None = None) -> Any:
    """The inverse. ValueError for bytes that `pack` did not make."""
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes")
        start = 8 + int.from_bytes(data[:8], "little")
        if start > 8 + MAX_HEADER:
            raise ValueError("too much text")
        text = data[8:start]
        # A value has an object, and a list more as a pair, or two as an array: json.loads would make all of them first.
        if text.count(b"{") + text.count(b"[") > 3 * MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS} values")
        reader = _Reader(data, start, arrays or Tensors())
        value = reader.value(json.loads(text), 0)
        if reader.start != len(data):
            raise ValueError("too long")
        return value
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"these bytes are not packed values ({type(error).__name__}: {error})") from None


class _Packer:
    def __init__(self, arrays: Tensors | NumPy) -> None:
        self.arrays, self.items = arrays, 0
        self.memory: list[bytes] = []  # of the arrays so far

    def tree(self, value: Any, depth: int) -> Any:
        kind, self.items = type(value), self.items + 1
        if depth > MAX_DEPTH:
            return {"opaque": "values nested more than 20 deep"}
        if value is None or kind in (bool, str):
            return value
        if isinstance(value, int):
            if abs(int(value)) >= 1 << MAX_BITS:
                return {"opaque": f"an int of more than {MAX_BITS} bits"}
            return {"int": str(int(value))}  # as text: JSON readers elsewhere may round large integers
        if isinstance(value, float):
            return {"float": float(value).hex()}
        if (array := self.arrays.take(value)) is not None:
            if isinstance(array, Opaque):
                return {"opaque": array.kind}
            dtype, shape, memory = array
            self.memory.append(memory)
            return {"array": [dtype, shape]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {"dict": [[str(k), self.tree(v, depth + 1)] for k, v in zip(value._fields, value)]}
        if isinstance(value, (list, tuple)):
            items = [self.tree(v, depth + 1) for v in value]
            return {"tuple" if isinstance(value, tuple) else "list": items}
        if isinstance(value, dict):
            return {"dict": [[self.tree(k, depth + 1), self.tree(v, depth + 1)] for k, v in value.items()]}
        if isinstance(value, np.generic) or kind is np.ndarray:  # one number
            return self.tree(value.item(), depth + 1)
        return {"opaque": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")}


class _Reader:
    """Builds values from a tree, and from the arrays' memory, which begins at `start`."""

    def __init__(self, data: bytes, start: int, arrays: Tensors | NumPy) -> None:
        self.data, self.start, self.arrays, self.items = data, start, arrays, 0

    def value(self, tree: Any, depth: int) -> Any:
        self.items += 1
        if self.items > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS} values")
        if depth > MAX_DEPTH + 2:
            raise ValueError("too deep")
        if tree is None or isinstance(tree, (bool, str)):
            return tree
        ((kind, content),) = tree.items()
        if kind == "int":
            if not isinstance(content, str) or len(content) > MAX_BITS:
                raise ValueError("an int that is none")
            number = int(content)
            if abs(number) >= 1 << MAX_BITS:
                raise ValueError("a large int")  # arithmetic with floats would overflow
            return number
        if kind == "float":
            return float.fromhex(content)
        if kind == "array":
            dtype, shape = content
            # Also for an empty one: torch makes it, and fails later, in whoever compares it.
            counts = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
            if not counts or len(shape) > MAX_DIMS or math.prod(max(1, n) for n in shape) > MAX_BYTES:
                raise ValueError("shape")
            begin, self.start = self.start, self.start + math.prod(shape) * self.arrays.sizes[dtype]
            if self.start > len(self.data):
                raise ValueError("too short")
            return self.arrays.make(dtype, shape, self.data[begin : self.start])
        if kind in ("list", "tuple"):
            values = [self.value(v, depth + 1) for v in content]
            return values if kind == "list" else tuple(values)
        if kind == "dict":
            pairs = [(self.value(k, depth + 1), self.value(v, depth + 1)) for k, v in content]
            # Only texts have hashes that a student's code cannot choose.
            if max(Counter(hash(key) for key, _ in pairs).values(), default=0) > SAME_HASH:
                raise ValueError("keys that collide")
            return dict(pairs)
        if kind == "opaque":
            return Opaque(str(content))
        raise ValueError(f"unknown kind {kind!r}")
