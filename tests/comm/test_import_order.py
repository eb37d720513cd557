"""What a rank on a GPU imports before it touches the GPU."""

import sys

import pytest
import torch

from labkit.comm.transport import join


@pytest.mark.parametrize("works", [True, False])
def test_transformer_engine_comes_first(tmp_path, monkeypatch, works):
    """A stand-in on the path, found as the library is; and one that does not import harms nobody."""
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "pytorch.py").write_text("" if works else "raise OSError('libcudnn_cnn.so.9: undefined symbol')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("transformer_engine", "transformer_engine.pytorch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    there = []

    def set_device(where):
        there.append("transformer_engine.pytorch" in sys.modules)
        raise InterruptedError

    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    try:
        with pytest.raises(InterruptedError):
            join("cuda", 0)
    finally:
        for name in ("transformer_engine", "transformer_engine.pytorch"):
            sys.modules.pop(name, None)
    assert there == [works]


def test_one_machine_listens_on_loopback_whatever_a_profile_says(monkeypatch):
    from labkit.comm.transport import stay_inside

    for variable in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        monkeypatch.setenv(variable, "hsn0")
    stay_inside()
    import os

    assert {os.environ["GLOO_SOCKET_IFNAME"], os.environ["TP_SOCKET_IFNAME"]} <= {"lo", "lo0"}
