"""The memory of a tensor as the broker's link sends and fills it."""

import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from labkit.comm.link import MAX_HEAD, frame_head, raw
from labkit.errors import LabError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool])
def test_raw_is_the_tensors_memory(dtype):
    tensor = torch.tensor([1.0, 0.0, 2.0]).to(dtype)
    assert bytes(raw(tensor)) == bytes(tensor.view(torch.uint8).tolist())
    raw(tensor)[:] = bytes(tensor.nbytes)
    assert not tensor.float().any()
    assert len(raw(torch.empty(0, 3))) == 0


def test_the_memory_lives_as_long_as_the_view():
    tensor = torch.zeros(4)
    memory, storage = raw(tensor)[2:], StorageWeakRef(tensor.untyped_storage())
    del tensor
    gc.collect()
    assert not storage.expired() and len(memory) == 14
    del memory
    gc.collect()
    assert storage.expired()
    tensor = torch.zeros(4)
    raw(tensor)
    tensor.untyped_storage().resize_(0)  # what FSDP gathers into loses its memory, and gets it back
    assert tensor.untyped_storage().nbytes() == 0


def test_a_head_that_is_too_long_is_refused_before_it_travels():
    with pytest.raises(LabError, match="make the batch smaller"):
        frame_head("post", {"ops": "x" * MAX_HEAD})
