"""Does code put its tensors where its group moves them? Asked on a machine whose ranks all live on the CPU.

A tensor lies on the group's device if it was made with a device, moved to one, or computed from tensors that lie there.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from labkit.comm.group import Group

_HERE = WeakTensorKeyDictionary()  # of all ranks: threads meet each other's. At a tensor whoever is judged could set it
_ACROSS = ("copy_", "__set__")  # may take tensors of two devices; of others, one number may lie elsewhere


class Elsewhere(TorchFunctionMode):
    """`with Elsewhere(group) as group:` notes in `astray` which calls got tensors from elsewhere, or of two devices."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group = group
        self.astray: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = list(_tensors((*args, *kwargs.values())))
        if func in (torch.Tensor.to, torch.Tensor.type_as) and len(given) == 2:
            given = given[1:]  # moved to where the other one lies
        moved = func is torch.Tensor.to and any(isinstance(value, str) for value in args[1:])
        named = moved or any(isinstance(value, torch.device) for value in args) or kwargs.get("device") is not None
        here = named or (bool(given) and all(map(_is_here, given)))
        if not named and func.__name__ not in _ACROSS and len({_is_here(t) for t in given if t.dim()}) == 2:
            self.astray.append(func.__name__)
        made = func(*args, **kwargs)
        for tensor in _tensors((made,)):
            if named or not any(tensor is other for other in given):  # what is changed in place stays where it is
                _HERE[tensor] = here
        return made

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._group, name)
        if not callable(found):
            return found

        def called(*args: Any, **kwargs: Any) -> Any:
            if not all(map(_is_here, _tensors((*args, *kwargs.values())))):
                self.astray.append(name)
            return found(*args, **kwargs)

        return called


def _is_here(tensor: torch.Tensor) -> bool:
    # torch makes a Parameter past this mode: one that nobody moved lies where its group is.
    return _HERE.get(tensor, isinstance(tensor, torch.nn.Parameter))


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
