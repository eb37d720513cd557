"""What FP8 parameters save: the study counts what a rank holds and sends, and its round trips lose nothing."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from labkit.errors import LabError
from labkit.precision.base import pieces
from studies.parameters import AFTER, held, study

SHAPE = '{"vocab_size"=512,"d_model"=256,"n_layers"=2,"n_heads"=2,"n_kv_heads"=2,"d_ffn"=256,"max_seq_len"=64}'


class Wrapper(torch.Tensor):
    """As Transformer Engine's FP8 tensors: it looks like FP32, and holds codes and scales."""

    @staticmethod
    def __new__(cls, codes, scales):
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)
        made._codes, made._scales, made._none = codes, scales, None
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def wrapped() -> Wrapper:
    return Wrapper(torch.zeros(4, 4, dtype=torch.uint8), torch.zeros(3))


def test_a_wrapper_is_what_lies_inside_it():
    assert {name: piece.nbytes for name, piece in pieces(wrapped()).items()} == {"codes": 16, "scales": 12}
    plain = nn.Parameter(torch.zeros(2, 2))
    plain.grad, plain.note = torch.zeros(2, 2), torch.zeros(5)
    assert list(pieces(plain)) == [""] and pieces(plain)[""] is plain
    odd = torch.zeros(2).as_subclass(type("Odd", (torch.Tensor,), {}))
    assert list(pieces(odd)) == [""], "nothing lies inside it"
    model, optimizer = SimpleNamespace(parameters=lambda: [wrapped()]), SimpleNamespace(state={})
    assert held(model, optimizer) == {"weights, uint8 (codes)": 16, "weights, float32 (scales)": 12}


def test_what_is_held_is_counted_by_kind_and_shared_memory_once():
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    each = 4 * 4 * 4
    assert held(model, optimizer) == dict.fromkeys(
        ("weights, float32", "gradients, float32", "m, float32", "v, float32"), each
    )
    model.twin = nn.Parameter(model.weight.detach())
    assert held(model, optimizer)["weights, float32"] == each, "one memory"
    model.low = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
    assert held(model, optimizer)["weights, bfloat16"] == 8


def test_an_unknown_arm_is_refused():
    with pytest.raises(LabError, match="there is no arm 'fp9'; there are: bf16"):
        study(["fp9"], [], 2, "cpu")
    with pytest.raises(LabError, match="there is no arm 'fp9'"):
        study([], [], 2, "cpu", trip="fp9")
    with pytest.raises(LabError, match="te-block has no FP8 parameters to convert; these have: te-block-par"):
        study([], [], 2, "cpu", trip="te-block")


@pytest.mark.thorough
def test_two_ranks_gather_bf16_and_hold_masters():
    """On a CPU FP8 is emulated: its values lie in FP32, so that nothing is saved, and masters come on top."""
    settings = ["seq_len=64", "batch_size=4", 'attention="auto"', "compile=false", f"model={SHAPE}"]
    settings.append('data={"vocab_size"=512,"max_bytes"=2000000}')
    found = study(["bf16", "emulated-parameters"], settings, 2, "cpu")
    block, outside = 4 * 256**2 + 3 * 256**2 + 2 * 256, 2 * 512 * 256 + 256
    sharded = 4 * (2 * block + outside) // 2
    for name, arm in found["arms"].items():
        assert all(arm["held"][f"{what}, float32"] == sharded for what in ("weights", "gradients", "m", "v"))
        assert arm["sent"]["reduce_scatter"] == 4 * (2 * block + outside)
        # Blocks are gathered twice, in BF16; what is outside of them once.
        assert arm["sent"]["all_gather"] == 2 * (2 * 2 * block + outside)
        assert arm["held"].get("master, float32", 0) == ("parameters" in name) * 4 * 2 * 7 * 256**2 // 2
    trip = study([], settings, 2, "cpu", trip="emulated-parameters")["round trip"]
    assert all(len(losses) == AFTER for losses in trip.values())
    assert trip["and to fp8 again"] == trip["as it is"], "the same codes, the same masters"
    assert trip["converted to bf16, values"][0] == trip["as it is"][0], "FP8 values, whatever holds them"
    assert trip["converted to bf16, masters"][0] != trip["as it is"][0], "or the masters were not taken"
