"""What `run_ranks` sends to rank processes and gets back: pickles, by value.

Pickle is for our own processes alone, with the rights of whoever runs them. What a check asks a student's function, and
what that answers, travels as plain data (labkit.checks.values).

Tensors travel as their bytes, on the CPU, without their storage's other elements and without gradients. torch's own way
between processes hands over a file descriptor into shared memory, which dies with the rank that made it; this does not.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import pickle
import runpy
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.errors import LabError

if TYPE_CHECKING:  # not before something is sent: `lab --help` knows rank pools too
    import torch

importing_main = False  # True while the caller's script is being imported into a rank
_imported_main = False  # and once it has been


class _Pickler(pickle.Pickler):
    """Notes what a rank will have to import: the main script, and the files of modules that only this process can
    find by name (a test runner loads test files so)."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=5)
        self.needs_main = False
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
    return pickler.file.getvalue()


def unpack(data: bytes) -> Any:
    return pickle.loads(data)


# -- a job: a function and its arguments ------------------------------------------------------------------------------
def pack_job(fn: Callable, args: tuple) -> tuple[dict[str, Any], bytes]:
    """The job for `load` in a rank: what that needs to import, {"main": ... or None, "files": {module: path}}, and the
    pickle. LabError if it cannot travel."""
    if importing_main:
        raise LabError(
            "this script starts ranks while it is being imported: put the lines that call run_ranks "
            'under `if __name__ == "__main__":` (every rank imports the script to find its functions)'
        )
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])  # results may hold the script's own classes
    pickler = _Pickler()
    name = getattr(fn, "__qualname__", type(fn).__name__)
    try:
        pickler.dump((fn, args))
    except Exception as error:
        what = f"the function {name}" if "<" in name or "." in name else f"{name} or one of its arguments"
        raise LabError(
            f"{what} cannot be sent to rank processes ({error}): define functions at the top level of a .py "
            f"file and pass plain values, or use backend='threads'"
        ) from error
    return {"main": main_module() if pickler.needs_main else None, "files": pickler.files}, pickler.file.getvalue()


def load(needs: dict[str, Any], data: bytes) -> Callable[[Any], bytes]:
    """In a rank: the job as a function of the group, which returns the packed value."""
    if needs["main"] is not None:
        _import_main(needs["main"])
    fn, args = _Unpickler(io.BytesIO(data), needs["files"]).load()

    def run(group: Any) -> bytes:
        value = fn(group, *args)
        try:
            return pack(value)
        except Exception as error:
            raise LabError(f"the return value cannot be sent back ({error}): return plain values and tensors") from None

    return run


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


def _import_main(main: dict[str, str]) -> None:
    """Import the caller's script under another name, so that `if __name__ == "__main__"` does not run it again."""
    global importing_main, _imported_main
    if _imported_main:
        return
    importing_main = True
    try:
        module = types.ModuleType("__mp_main__")
        if "name" in main:
            content = runpy.run_module(main["name"], run_name="__mp_main__", alter_sys=True)
        else:
            content = runpy.run_path(main["path"], run_name="__mp_main__")
        module.__dict__.update(content)
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        _imported_main = True
    finally:
        importing_main = False
