"""What memory is really held: a meter of storages.

    with StorageMeter() as meter:
        loss = model(x); loss.backward()
    meter.peak          the most bytes that were held at once, of all storages made inside the `with`

Torch calls the meter after every operation, forward and backward. The meter keeps a weak reference to each storage
that it sees and reads the sizes anew at each sample: a storage can shrink and grow in place
(`storage.resize_(0)`), and asking Python's garbage collector for tensors misses whatever autograd alone holds.

It samples between operations: what one operation takes and gives back inside is not seen.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.checks.held import reached


class StorageMeter(TorchDispatchMode):
    """Counts bytes of storages (see above). `without` are tensors that were there before and are not to be counted.

    peak        bytes, the most at any sample
    samples     bytes after each operation, in order
    """

    def __init__(self, without=()) -> None:
        super().__init__()
        self._known: dict[int, StorageWeakRef] = {}
        self._without = {StorageWeakRef(tensor.untyped_storage()) for tensor in without}
        self.samples: list[int] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch's default wraps `__torch_dispatch__` against being compiled, for which the first operation
        imports 800 modules (a second and a half in every rank). Nothing is compiled here."""
        return False

    @property
    def peak(self) -> int:
        return max(self.samples, default=0)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and leaf.device.type != "meta":
                self.see(leaf)
        self.samples.append(self.held())
        return result

    def see(self, tensor: torch.Tensor) -> None:
        ref = StorageWeakRef(tensor.untyped_storage())
        if ref not in self._without:
            self._known[ref.cdata] = ref

    def held(self) -> int:
        """Bytes held now."""
        total = 0
        for key, ref in list(self._known.items()):
            storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(ref.cdata)
            if storage is None:
                del self._known[key]
            else:
                total += storage.nbytes()
        return total


class Owned(NamedTuple):
    """Bytes: of storages, and what tensors use of them. A view uses a part, and keeps all of its storage."""

    storages: int
    used: int


def owned(*roots: object, without=()) -> Owned:
    """What all tensors that the `roots` refer to own, wherever they are kept (labkit.checks.held). Not counted are the
    storages of `without`, and what a group refers to.

    For what an object keeps between steps this is surer than the meter: a communication library lets go of the last
    message's tensors only when its thread next runs."""
    ignored = {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in without}
    storages: dict[int, int] = {}
    used: dict[int, int] = {}
    for tensor in reached(*roots, package="week14_fsdp"):
        key = StorageWeakRef(tensor.untyped_storage()).cdata
        if key not in ignored:
            storages[key] = tensor.untyped_storage().nbytes()
            used[key] = min(storages[key], used.get(key, 0) + tensor.nbytes)
    return Owned(sum(storages.values()), sum(used.values()))
