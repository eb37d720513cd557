"""What travels between the caller and its rank processes: pickles by value, in frames, over a socket.

Tensors travel as their bytes, on the CPU, without their storage's other elements and without gradients. torch's own way
between processes hands over a file descriptor into shared memory, which dies with the rank that made it; this does not.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from labkit.errors import LabError

HEADER = struct.Struct("!4sQ")  # what it is, and how many bytes follow


class _Pickler(pickle.Pickler):
    """Notes what a rank will have to import: the main script, and the files of modules that only this process can
    find by name (a test runner loads test files so)."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.needs_main = False
        self.files: dict[str, str] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            if type(obj) in (torch.Tensor, torch.nn.Parameter) and obj.layout is torch.strided and not obj.is_quantized:
                flat = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                return _tensor, (
                    pickle.PickleBuffer(flat.numpy()),
                    obj.dtype,
                    tuple(obj.shape),
                    obj.requires_grad and obj.is_leaf,
                    type(obj) is torch.nn.Parameter,
                )
            if hasattr(obj, "full_tensor"):
                raise pickle.PicklingError("a DTensor lives on its mesh: return x.full_tensor() or x.to_local()")
        elif isinstance(obj, (type, types.FunctionType)):
            name = obj.__module__
            if name in ("__main__", "__mp_main__"):
                self.needs_main = True
            elif name not in self.files and (path := getattr(sys.modules.get(name), "__file__", None)):
                self.files[name] = os.path.abspath(path)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, files: dict[str, str]) -> None:
        super().__init__(file)
        self.files = files

    def find_class(self, module: str, name: str) -> Any:
        if module in self.files and module not in sys.modules:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                    raise  # the module is there; something that it imports is not
                _load(module, self.files[module])
        return super().find_class(module, name)


def _load(module: str, path: str) -> None:
    spec = importlib.util.spec_from_file_location(module, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...], grad: bool, parameter: bool) -> torch.Tensor:
    flat = (
        torch.frombuffer(bytearray(data) if isinstance(data, bytes) else data, dtype=torch.uint8)
        if len(data)
        else torch.empty(0, dtype=torch.uint8)
    )
    tensor = flat.view(dtype).reshape(shape)
    return torch.nn.Parameter(tensor, grad) if parameter else tensor.requires_grad_(grad)


def pack(obj: Any) -> bytes:
    """obj -> bytes, tensors by value. Raises what pickle raises."""
    file = io.BytesIO()
    _Pickler(file).dump(obj)
    return file.getvalue()


def unpack(data: bytes) -> Any:
    return pickle.loads(data)


def pack_job(fn: Callable, args: tuple) -> tuple[bytes, dict[str, Any]]:
    """The job, and what a rank needs to unpack it: {"main": main_module() or None, "files": {module: path}}.

    LabError if it cannot travel."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    name = getattr(fn, "__qualname__", type(fn).__name__)
    try:
        pickler.dump((fn, args))
    except Exception as error:
        what = f"the function {name}" if "<" in name or "." in name else f"{name} or one of its arguments"
        raise LabError(
            f"{what} cannot be sent to rank processes ({error}): define functions at the top level of a .py "
            f"file and pass plain values, or use backend='threads'"
        ) from error
    return file.getvalue(), {"main": main_module() if pickler.needs_main else None, "files": pickler.files}


def unpack_job(data: bytes, needs: dict[str, Any]) -> tuple[Callable, tuple]:
    """The inverse, in a rank that has imported the main script if it was needed."""
    return _Unpickler(io.BytesIO(data), needs["files"]).load()


def main_module() -> dict[str, str]:
    """How a rank can import this program's main module: {"name": ...} for `python -m`, else {"path": ...}."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return {"name": spec.name}
    path = getattr(main, "__file__", None)
    if path is None or not Path(path).is_file():
        raise LabError(
            "a function defined in a notebook or an interactive session cannot be sent to rank processes: "
            "use backend='threads', or move it into a .py file and import it"
        )
    return {"path": str(Path(path).resolve())}


def frame(kind: str, payload: bytes = b"") -> bytes:
    """One frame: 4 letters of kind, the length, the payload."""
    return HEADER.pack(kind.encode().ljust(4), len(payload)) + payload


class Reader:
    """Collects frames from bytes as they come."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        self.buffer += data
        frames = []
        while len(self.buffer) >= HEADER.size:
            kind, length = HEADER.unpack_from(self.buffer)
            if len(self.buffer) < HEADER.size + length:
                break
            frames.append((kind.decode().strip(), bytes(memoryview(self.buffer)[HEADER.size : HEADER.size + length])))
            del self.buffer[: HEADER.size + length]
        return frames
