"""What `run_ranks` sends to rank processes and gets back: pickles, by value, for our own processes alone.

Tensors travel as their bytes, on the CPU. What no rank can import travels by value, by cloudpickle.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cloudpickle

from labkit.errors import LabError

if TYPE_CHECKING:  # not before something is sent: `lab --help` knows rank pools too
    import torch


class _Pickler(cloudpickle.Pickler):
    """Notes the files of modules that only this process can find by name: a test runner loads test files so."""

    def __init__(self) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, protocol=5)
        self.files: dict[str, str] = {}

    def reducer_override(self, obj: Any) -> Any:
        import torch

        if isinstance(obj, torch.Tensor):
            plain = type(obj) in (torch.Tensor, torch.nn.Parameter)
            if plain and obj.layout is torch.strided and not obj.is_quantized:
                flat = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                grad, parameter = obj.requires_grad and obj.is_leaf, type(obj) is torch.nn.Parameter
                return _tensor, (pickle.PickleBuffer(flat.numpy().data), obj.dtype, tuple(obj.shape), grad, parameter)
            if hasattr(obj, "full_tensor"):
                raise pickle.PicklingError("a DTensor lives on its mesh: return x.full_tensor() or x.to_local()")
        elif isinstance(obj, (type, types.FunctionType)):
            name = obj.__module__
            if name not in self.files and (path := getattr(sys.modules.get(name), "__file__", None)):
                self.files[name] = os.path.abspath(path)
        return super().reducer_override(obj)


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
                spec = importlib.util.spec_from_file_location(module, self.files[module])
                if spec is None or spec.loader is None:
                    raise
                sys.modules[module] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[module])
        return super().find_class(module, name)


def _tensor(data: Any, dtype: torch.dtype, shape: tuple[int, ...], grad: bool, parameter: bool) -> torch.Tensor:
    import torch

    if isinstance(data, bytes):
        data = bytearray(data)
    flat = torch.frombuffer(data, dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)
    tensor = flat.view(dtype).reshape(shape)
    return torch.nn.Parameter(tensor, grad) if parameter else tensor.requires_grad_(grad)


def pack(obj: Any) -> bytes:
    """obj -> bytes, tensors by value. Raises what pickle raises."""
    pickler = _Pickler()
    pickler.dump(obj)
    return pickler.bytes.getvalue()


def unpack(data: bytes) -> Any:
    return pickle.loads(data)


# -- a job: a function and its arguments ------------------------------------------------------------------------------
def pack_job(fn: Callable, args: tuple) -> tuple[dict[str, str], bytes]:
    """The job for `load` in a rank: {module: file} of what it may import, and the pickle. LabError: it cannot travel."""
    pickler = _Pickler()
    try:
        pickler.dump((fn, args))
    except Exception as error:
        name = getattr(fn, "__qualname__", type(fn).__name__)
        raise LabError(
            f"{name} or one of its arguments cannot be sent to rank processes ({error}): pass plain values, put a "
            "function that uses more into a .py file and import it, or use backend='threads'"
        ) from error
    return pickler.files, pickler.bytes.getvalue()


def load(files: dict[str, str], data: bytes) -> Callable[[Any], bytes]:
    """In a rank: the job as a function of the group, which returns the packed value."""
    fn, args = _Unpickler(io.BytesIO(data), files).load()

    def run(group: Any) -> bytes:
        value = fn(group, *args)
        try:
            return pack(value)
        except Exception as error:
            raise LabError(f"the return value cannot be sent back ({error}): return plain values and tensors") from None

    return run
