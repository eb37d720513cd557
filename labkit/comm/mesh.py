"""`Mesh`: the ranks of a group as a grid with named dimensions, and a Group along each of them.

    mesh = Mesh(group, dp=2, tp=2)          rank 0 1 2 3 of the group:          tp ->
                                            the last dimension varies        dp   0  1
    mesh["tp"].all_reduce(x)                fastest, as in torch's           |    2  3
    mesh["dp"].all_reduce(g)                DeviceMesh and init_device_mesh  v

`mesh["tp"]` is the Group of the ranks that differ from this one in tp alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from labkit.comm.group import Group
from labkit.comm.torch_group import device_mesh
from labkit.errors import LabError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

MODEL = ("tp", "pp")  # ranks along these hold parts of one model, and see the same part of the batch


class Mesh:
    """All ranks of `group`, cut along named dimensions whose sizes multiply to `group.size`; made by all at once.

    sizes: {name: size}, in order. ledger: device_mesh also notes what FSDP2, DTensor and others send. LabError: no fit.
    """

    def __init__(self, group: Group, *, ledger: bool = False, **sizes: int) -> None:
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise LabError(f"{name}={size!r} is no size of a mesh: a whole number, at least 1")
        if not sizes or math.prod(sizes.values()) != group.size:
            cut = " x ".join(f"{name}={size}" for name, size in sizes.items()) or "no dimension"
            raise LabError(f"a mesh of {cut} has {math.prod(sizes.values())} ranks, and the group has {group.size}")
        self.group, self.sizes, self.ledger = group, sizes, ledger
        self._grid = torch.arange(group.size).reshape(*sizes.values())  # the group's ranks, by coordinate
        self._groups: dict[str, Group] = {}
        for dim, (name, size) in enumerate(sizes.items()):
            self._groups[name] = group.split(self._grid.movedim(dim, -1).reshape(-1, size).tolist(), name)
        self._device_mesh: DeviceMesh | None = None

    def __getitem__(self, name: str) -> Group:
        if name not in self._groups:
            raise LabError(f"this mesh has the dimensions {', '.join(self.sizes)}, and not {name!r}")
        return self._groups[name]

    @property
    def data_share(self) -> tuple[int, int]:
        """(index, count): this rank's part of the batch, of so many. Dimensions other than tp and pp share the data."""
        where = (self._grid == self.group.rank).nonzero()[0].tolist()
        index, count = 0, 1
        for at, (name, size) in zip(where, self.sizes.items()):
            if name not in MODEL:
                index, count = index * size + at, count * size
        return index, count

    @property
    def device_mesh(self) -> DeviceMesh:
        """torch's DeviceMesh of the same ranks and groups, for FSDP2 and DTensor. LabError on threads, behind a broker."""
        if self._device_mesh is None:
            ranks = torch.tensor(self.group.ranks)[self._grid]
            ends = [group.transport for group in self._groups.values()]
            ledger = self.group.ledger if self.ledger else None
            self._device_mesh = device_mesh(ends, ranks, tuple(self.sizes), ledger)
        return self._device_mesh
