"""Settings that change a step's speed or memory and not what it computes; and perturbed baselines that differ from one another."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

from labkit.model.config import ModelConfig
from labkit.model.decoder import RotaryAttention, Transformer, init_weights, rotary_tables, rotate
from labkit.parallel.transforms import choose_attention, chunked_loss

SIZE = ModelConfig(vocab_size=64, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=48, max_seq_len=32)


@pytest.mark.parametrize("now", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 16, 1000])
def test_a_loss_in_pieces_is_the_loss(chunk, now):
    model = init_weights(Transformer(SIZE), 0)
    tokens = torch.randint(0, 64, (3, 17), generator=torch.Generator().manual_seed(1))
    whole = model(tokens[:, :-1], tokens[:, 1:])
    whole.backward()
    want = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    seen = []
    model.head.register_forward_hook(lambda m, args, y: seen.append(y.shape[-2]))
    model.loss = lambda x, targets: chunked_loss(model, chunk, x, targets, now=now)
    pieces = model(tokens[:, :-1], tokens[:, 1:])
    (3 * pieces).backward()
    torch.testing.assert_close(pieces, whole)
    assert max(seen) == min(chunk, 48), "never more logits than configured"
    assert len(seen) == -(-48 // chunk) * (1 if now else 2), "computed once, or once more in the backward"
    for name, p in model.named_parameters():  # fp32 sums in another order
        torch.testing.assert_close(p.grad, 3 * want[name], rtol=1e-4, atol=3e-7, msg=name)


def test_a_loss_in_pieces_leaves_what_is_frozen_and_can_be_evaluated(monkeypatch):
    model = init_weights(Transformer(SIZE), 0)
    tokens = torch.randint(0, 64, (3, 17), generator=torch.Generator().manual_seed(1))
    whole = model(tokens[:, :-1], tokens[:, 1:])
    model.loss = lambda x, targets: chunked_loss(model, 16, x, targets)
    with torch.no_grad(), monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", None)  # no gradient is taken
        torch.testing.assert_close(model(tokens[:, :-1], tokens[:, 1:]), whole)
    model.head.weight.requires_grad_(False)
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    assert model.head.weight.grad is None and model.tok_embed.weight.grad.any()


def test_a_third_of_a_loss_in_pieces_has_a_third_of_its_gradient():
    """In BF16 1/3 is 0.33398: what the loss is multiplied by must not be rounded to the gradients' type."""
    model = init_weights(Transformer(SIZE), 0).bfloat16()
    x = torch.randn(4, 16, 32, generator=torch.Generator().manual_seed(2)).bfloat16().requires_grad_()
    targets = torch.arange(64).view(4, 16)
    wanted = [x, model.head.weight]
    whole, third = (torch.autograd.grad(chunked_loss(model, 7, x, targets) * part, wanted) for part in (1.0, 1 / 3))
    for one, part in zip(whole, third):
        one, part = one.double().flatten(), part.double().flatten()
        # Rounding single numbers to BF16 (2^-9) averages out over 2,048 of them; that of the factor, 0.2 %, would not.
        assert 3 * (one @ part / (one @ one)).item() == pytest.approx(1, abs=5e-4)


def test_the_heads_gradient_is_summed_over_the_pieces_in_fp32():
    model = init_weights(Transformer(SIZE), 0).bfloat16()
    x = torch.randn(8, 64, 32, generator=torch.Generator().manual_seed(2)).bfloat16().requires_grad_()
    targets = torch.randint(0, 64, (8, 64), generator=torch.Generator().manual_seed(3))
    (whole,) = torch.autograd.grad(chunked_loss(model, 512, x, targets), model.head.weight)
    (pieces,) = torch.autograd.grad(chunked_loss(model, 4, x, targets), model.head.weight)
    off = (pieces.double() - whole.double()).norm() / whole.double().norm()
    assert off < 5e-3, "one rounding to BF16 of the sum, and of each piece; summed in BF16 it is 2e-2"


def test_attention_in_any_memory_order_is_attention():
    """Against the textbook order: heads first, then turned."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, n, 8, generator=g) for n in (4, 2, 2))
    cos, sin = rotary_tables(9, 8, 1e4, torch.device("cpu"))
    first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    want = F.scaled_dot_product_attention(
        rotate(first[0], cos, sin), rotate(first[1], cos, sin), first[2], is_causal=True, enable_gqa=True
    ).transpose(1, 2)
    torch.testing.assert_close(RotaryAttention()(q, k, v, cos, sin), want)


def test_the_kernel_is_chosen_in_every_block():
    model = Transformer(SIZE)
    for name, kind in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION), ("auto", None)):
        choose_attention(model, name)
        assert [block.attn.core.kernel for block in model.blocks()] == [kind, kind]


def test_a_kernel_that_cannot_run_here_is_not_replaced_in_silence():
    model = Transformer(SIZE)
    choose_attention(model, "cudnn")
    with pytest.raises(RuntimeError, match="(?i)kernel"):
        model(torch.zeros(1, 4, dtype=torch.int64))  # a CPU has no cuDNN
