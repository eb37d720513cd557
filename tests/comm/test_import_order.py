"""What a rank on a GPU imports before it touches the GPU."""

import importlib

import pytest
import torch

from labkit.comm.transport import join


@pytest.mark.parametrize("error", [None, OSError("libcudnn_cnn.so.9: undefined symbol")])
def test_transformer_engine_comes_first(error, monkeypatch):
    """And one that does not import harms nobody."""
    done = []

    def import_module(name):
        done.append(name)
        if error is not None:
            raise error

    def set_device(device):
        done.append(str(device))
        raise InterruptedError

    monkeypatch.setattr(importlib, "import_module", import_module)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InterruptedError):
        join("cuda", 0)
    assert done == ["transformer_engine.pytorch", "cuda:0"]
