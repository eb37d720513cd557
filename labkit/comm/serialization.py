"""What `run_ranks` sends to rank processes and gets back: pickles, for our own processes alone.

Tensors travel as their bytes, on the CPU; what no rank can import by value, by cloudpickle.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle

from labkit.errors import LabError


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        import torch  # not before something is sent: `lab --help` knows rank pools too

        if isinstance(obj, torch.Tensor):
            plain = type(obj) in (torch.Tensor, torch.nn.Parameter)
            if plain and obj.layout is torch.strided and not obj.is_quantized:
                flat = obj.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                grad, parameter = obj.requires_grad and obj.is_leaf, type(obj) is torch.nn.Parameter
                return _tensor, (flat.numpy(), obj.dtype, tuple(obj.shape), grad, parameter)
            if hasattr(obj, "full_tensor"):
                raise pickle.PicklingError("a DTensor lives on its mesh: return x.full_tensor() or x.to_local()")
        return super().reducer_override(obj)


def _tensor(data: Any, dtype: Any, shape: tuple[int, ...], grad: bool, parameter: bool) -> Any:
    import torch

    tensor = torch.from_numpy(data).view(dtype).reshape(shape)
    return torch.nn.Parameter(tensor, grad) if parameter else tensor.requires_grad_(grad)


def pack(obj: Any) -> bytes:
    """obj -> bytes, tensors by value. Raises what pickle raises."""
    data = io.BytesIO()
    _Pickler(data, protocol=5).dump(obj)
    return data.getvalue()


unpack = pickle.loads


# -- a job: a function and its arguments ------------------------------------------------------------------------------
def pack_job(fn: Callable, args: tuple) -> bytes:
    """The job for `load` in a rank. LabError: it cannot travel."""
    try:
        return pack((fn, args))
    except Exception as error:
        name = getattr(fn, "__qualname__", type(fn).__name__)
        raise LabError(
            f"{name} or one of its arguments cannot be sent to rank processes ({error}): pass plain values, import a "
            "function that uses more from a .py file, or use backend='threads'"
        ) from error


def load(head: dict[str, Any], data: bytes) -> Callable[[Any], bytes]:
    """In a rank: the job as a function of the group, which returns the packed value."""
    fn, args = unpack(data)
    return lambda group: pack_value(fn(group, *args))


def pack_value(value: Any) -> bytes:
    """What a rank returns, packed; LabError: it cannot travel."""
    try:
        return pack(value)
    except Exception as error:
        raise LabError(f"the return value cannot be sent back ({error}): return plain values and tensors") from None
