"""The FLOP formulas against torch's own counter, and against arithmetic done by hand."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from labkit.model.config import ModelConfig, sizes
from labkit.model.decoder import Transformer
from labkit.model.flops import flops_per_token, linear_params

SMALL = ModelConfig(vocab_size=96, d_model=32, n_layers=2, n_heads=4, n_kv_heads=4, d_ffn=80, max_seq_len=64)
SHAPES = {
    "plain": SMALL,
    "grouped": SMALL.replace(n_kv_heads=1, n_layers=3),
    "tied": SMALL.replace(tie_embeddings=True, d_ffn=48),
}


def counted(config: ModelConfig, batch: int, seq_len: int, backward: bool) -> int:
    """What the counter sees. The math kernel shows attention as plain products over the whole square: causal=False."""
    model = Transformer(config)
    x_BT = torch.randint(config.vocab_size, (batch, seq_len + 1))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss = model(x_BT[:, :-1], x_BT[:, 1:])
        if backward:
            loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_full_count_is_the_profilers(shape: str, backward: bool) -> None:
    config, batch, seq_len = SHAPES[shape], 3, 24
    assert counted(config, batch, seq_len, backward) == batch * seq_len * flops_per_token(
        config, seq_len, causal=False, backward=backward
    )


@pytest.mark.parametrize("backward, factor", [(False, 1), (True, 3)])
def test_causal_counts_every_pair_once(backward: bool, factor: int) -> None:
    """Position t looks at t + 1 of 24 keys: 2 products of 2 * D FLOPs each, per layer. Nothing else differs."""
    saved = sum(24 - (t + 1) for t in range(24)) * 2 * 2 * SMALL.d_model * SMALL.n_layers
    full, causal = (flops_per_token(SMALL, 24, causal=causal, backward=backward) for causal in (False, True))
    assert 24 * (full - causal) == factor * saved


def test_8b_by_hand() -> None:
    """Llama-3-8B at 8192: 6 * 7.505e9 for the linears and head, 12 * 32 * 4096 * 8192 for full attention."""
    block = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336
    linears = 32 * block + 4096 * 128256
    assert linear_params(sizes()["8b"]) == linears == 7_504_658_432
    assert flops_per_token(sizes()["8b"], 8192, causal=False) == 6 * linears + 12 * 32 * 4096 * 8192
