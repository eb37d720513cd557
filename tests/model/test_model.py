"""The decoder against a slow one written with loops, and what it promises to sharding, compile and precision."""

import math

import pytest
import torch
from torch import Tensor, nn

from labkit.errors import LabError
from labkit.model.config import ModelConfig, sizes
from labkit.model.decoder import MeanCrossEntropy, Transformer, init_weights, rotary_tables, rotate
from labkit.model.flops import n_params

SMALL = ModelConfig(
    vocab_size=61, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=48, max_seq_len=64, rope_theta=100.0
)


def tokens(config: ModelConfig = SMALL, batch: int = 2, positions: int = 12) -> Tensor:
    return torch.randint(config.vocab_size, (batch, positions), generator=torch.Generator().manual_seed(0))


def lively(config: ModelConfig = SMALL) -> Transformer:
    """A model with weights large enough that attention is far from uniform, and norms far from 1: any mistake shows."""
    model, generator = Transformer(config), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.4 + (p.ndim == 1))
    return model


# -- What it computes -------------------------------------------------------------------------------------------------
def slow_logits(model: Transformer, sequence: list[int]) -> Tensor:
    """One sequence through the decoder in float64, a position and a head at a time, rotary as complex numbers."""
    c, w = model.config, {name: p.detach().double() for name, p in model.named_parameters(remove_duplicate=False)}

    def norm(x: Tensor, name: str) -> Tensor:
        return x / math.sqrt(float(x @ x) / len(x) + c.norm_eps) * w[name]

    def turned(x: Tensor, position: int) -> Tensor:
        half = c.d_head // 2
        angles = position * c.rope_theta ** (-2 * torch.arange(half).double() / c.d_head)
        z = torch.complex(x[:half], x[half:]) * torch.complex(angles.cos(), angles.sin())
        return torch.cat((z.real, z.imag))

    def head(x: Tensor, n: int) -> Tensor:
        return x[n * c.d_head : (n + 1) * c.d_head]

    xs = [w["tok_embed.weight"][t] for t in sequence]
    for i in range(c.n_layers):
        at = f"layers.{i}."
        normed = [norm(x, at + "attn_norm.weight") for x in xs]
        q, k, v = ([w[at + f"attn.w{s}.weight"] @ x for x in normed] for s in "qkv")
        for t in range(len(xs)):
            out = []
            for n in range(c.n_heads):
                kv = n // (c.n_heads // c.n_kv_heads)
                score = torch.stack([turned(head(q[t], n), t) @ turned(head(k[s], kv), s) for s in range(t + 1)])
                share = (score / math.sqrt(c.d_head)).softmax(0)
                out.append(sum(share[s] * head(v[s], kv) for s in range(t + 1)))
            xs[t] = xs[t] + w[at + "attn.wo.weight"] @ torch.cat(out)
        for t in range(len(xs)):
            y = norm(xs[t], at + "ffn_norm.weight")
            gate, up = w[at + "ffn.w1.weight"] @ y, w[at + "ffn.w3.weight"] @ y
            xs[t] = xs[t] + w[at + "ffn.w2.weight"] @ (gate * torch.sigmoid(gate) * up)
    return torch.stack([w["head.weight"] @ norm(x, "norm.weight") for x in xs])


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 4}, {"n_kv_heads": 1}, {"tie_embeddings": True}])
def test_logits_are_those_of_a_slow_decoder(changes: dict) -> None:
    config = SMALL.replace(**changes)
    model, x_BT = lively(config), tokens(config)
    want = torch.stack([slow_logits(model, row.tolist()) for row in x_BT])
    # fp32 sums of at most 48 terms through 2 blocks: observed below 1e-5. A wrong pairing or head is of order 1.
    torch.testing.assert_close(model(x_BT).double(), want, rtol=1e-4, atol=1e-4 * float(want.abs().max()))


def test_loss_is_the_mean_cross_entropy_in_fp32() -> None:
    model, x_BT, y_BT = lively(), tokens(), tokens().flip(0)
    shares = model(x_BT).double().exp().flatten(0, 1)
    shares = shares / shares.sum(1, keepdim=True)
    want = -shares.gather(1, y_BT.flatten()[:, None]).log().mean().item()
    loss = model(x_BT, y_BT)
    assert loss.dtype == torch.float32 and loss.shape == ()
    assert abs(loss.item() - want) < 1e-5 * want


def test_bf16_logits_are_summed_in_fp32() -> None:
    """A mean over 4096 tokens whose true value is ln 61; summing it in bf16 would be off in the third digit."""
    loss = MeanCrossEntropy()(torch.zeros(4, 1024, 61, dtype=torch.bfloat16), torch.zeros(4, 1024, dtype=torch.long))
    assert loss.dtype == torch.float32 and abs(loss.item() - math.log(61)) < 1e-5


def test_rotary_tables_are_fp32_and_right_far_out() -> None:
    """At position 8191 bf16 could not even hold the position. fp32 angles are good to 8191 * 2**-24 = 5e-4."""
    cos, sin = rotary_tables(8192, 128, 500_000.0, torch.device("cpu"))
    assert cos.dtype == sin.dtype == torch.float32
    angle = torch.outer(torch.arange(8192, dtype=torch.float64), 500_000.0 ** (-torch.arange(0, 128, 2).double() / 128))
    for got, want in ((cos, angle.cos()), (sin, angle.sin())):
        assert (got - want).abs().max() < 2e-3


def test_bf16_model_keeps_exact_positions() -> None:
    """`.to(bfloat16)` rounds buffers too, and `to_empty` leaves garbage in them; here neither can touch the tables."""
    with torch.device("meta"):
        model = Transformer(SMALL)
    assert not list(model.buffers())
    model = init_weights(model.to_empty(device="cpu"), 0).to(torch.bfloat16)
    seen = []
    model.layers["1"].register_forward_pre_hook(lambda block, args: seen.extend(args))
    assert model(tokens()).dtype == torch.bfloat16
    for got, want in zip(seen[1:], rotary_tables(12, SMALL.d_head, SMALL.rope_theta, torch.device("cpu")), strict=True):
        assert got.dtype == torch.float32 and torch.equal(got, want)


def test_rotate_computes_in_fp32() -> None:
    """bf16 features: one rounding of the result, none in between; also where FSDP2 has cast the tables to bf16."""
    x = torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(5)).to(torch.bfloat16)
    cos, sin = rotary_tables(64, 8, 100.0, torch.device("cpu"))
    for c, s in ((cos, sin), (cos.to(torch.bfloat16), sin.to(torch.bfloat16))):
        assert torch.equal(rotate(x, c, s), rotate(x.float(), c.float(), s.float()).to(torch.bfloat16))


# -- Sizes ------------------------------------------------------------------------------------------------------------
PUBLISHED = {"tiny": 1_311_872, "124m": 123_587_328, "1b": 1_140_918_272, "8b": 8_030_261_248}  # 8b: Llama-3-8B's own


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes(name: str) -> None:
    with torch.device("meta"):
        model = Transformer(sizes()[name])
    assert sum(p.numel() for p in model.parameters()) == n_params(sizes()[name]) == PUBLISHED[name]
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    assert all(m.in_features % 16 == 0 and m.out_features % 16 == 0 for m in linears), "FP8 needs multiples of 16"


# -- What stands outside of it ----------------------------------------------------------------------------------------
class Mine(nn.Linear):
    """A linear of another type."""


def test_every_linear_and_the_embedding_come_from_outside() -> None:
    made: list[tuple[str, int, int]] = []

    def linear(name: str, in_features: int, out_features: int) -> nn.Module:
        made.append((name, in_features, out_features))
        return Mine(in_features, out_features, bias=False)

    class Table(nn.Embedding):
        pass

    model = Transformer(SMALL, linear=linear, embedding=Table)
    block = [("attn.wq", 32, 32), ("attn.wk", 32, 16), ("attn.wv", 32, 16), ("attn.wo", 32, 32)]
    block += [("ffn.w1", 32, 48), ("ffn.w3", 32, 48), ("ffn.w2", 48, 32)]
    assert made == [(f"layers.{i}.{name}", *dims) for i in (0, 1) for name, *dims in block] + [("head", 32, 61)]
    kinds = {name: type(m) for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert set(kinds) == {name for name, *_ in made} and set(kinds.values()) == {Mine}
    assert type(model.tok_embed) is Table and model.tok_embed.weight.shape == (61, 32)


# -- Stages -----------------------------------------------------------------------------------------------------------
FOUR = SMALL.replace(n_layers=4)
CUTS = {"two": [range(2), range(2, 4)], "uneven": [range(1), range(1, 3), range(3, 4)], "one": [range(4)]}


@pytest.mark.parametrize("cut", CUTS)
def test_stages_are_the_model_cut(cut: str) -> None:
    """The same names, the same first values, and, one after the other, the same loss and gradients, bit for bit."""
    whole, x_BT = init_weights(Transformer(FOUR), 5), tokens(FOUR)
    loss = whole(x_BT[:, :-1], x_BT[:, 1:])
    loss.backward()
    want = dict(whole.named_parameters())

    stages = [init_weights(Transformer(FOUR, layers=layers), 5) for layers in CUTS[cut]]
    names = [name for stage in stages for name, _ in stage.named_parameters()]
    assert names == list(want), "every weight in one stage, under its name in the whole model"
    h = x_BT[:, :-1]
    for stage in stages[:-1]:
        h = stage(h)
        assert h.shape == (2, 11, 32), "the stage before gives x_BTD"
    got = stages[-1](h, x_BT[:, 1:])
    got.backward()
    assert torch.equal(got, loss)
    for stage in stages:
        for name, weight in stage.named_parameters():
            assert torch.equal(weight, want[name]) and torch.equal(weight.grad, want[name].grad), name
    assert torch.equal(stages[-1](h), whole(x_BT[:, :-1])), "without targets the last stage gives logits"


def test_a_tied_model_is_not_cut() -> None:
    tied = FOUR.replace(tie_embeddings=True)
    Transformer(tied, layers=range(4))
    for layers in (range(2), range(2, 4), range(1, 2)):
        with pytest.raises(LabError, match="a head in the last stage cannot be the embedding of the first"):
            Transformer(tied, layers=layers)


def test_the_configuration_s_shapes_are_the_decoder_s() -> None:
    for config in (SMALL, FOUR.replace(tie_embeddings=True), *sizes().values()):
        with torch.device("meta"):
            model = Transformer(config)
        named = model.named_parameters(remove_duplicate=False)
        assert {name: tuple(p.shape) for name, p in named} == config.weight_shapes()


def test_a_share_of_the_heads_works_alone() -> None:
    """Tensor parallelism hands a rank N/2 query and K/2 key/value heads: the attention core must not ask the config."""
    model, (cos, sin) = lively(), rotary_tables(6, SMALL.d_head, 100.0, torch.device("cpu"))
    attn, x_BTD = model.layers["0"].attn, torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(4))
    want, wo = attn(x_BTD, cos, sin), attn.wo.weight.detach()
    rows = {name: getattr(attn, name).weight.detach() for name in ("wq", "wk", "wv")}
    got = torch.zeros_like(want)
    for i in (0, 1):
        for name, w in rows.items():
            getattr(attn, name).weight = nn.Parameter(w.chunk(2)[i])
        attn.wo.weight = nn.Parameter(wo.chunk(2, dim=1)[i])
        got += attn(x_BTD, cos, sin)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)  # the sum over heads in two parts


def test_scaled_rotary_tables_slow_the_long_waves_alone():
    """Llama 3.1's: the ends of the range are exact, what lies between is between."""
    device = torch.device("cpu")
    factor, low, high, original = 8.0, 1.0, 4.0, 8192.0
    plain, scaled = (
        torch.atan2(*reversed(rotary_tables(2, 128, 500_000.0, device, rope)))[1]
        for rope in ((), (factor, low, high, original))
    )
    turns = original * plain.double() / (2 * torch.pi)
    assert torch.equal(scaled[turns > high], plain[turns > high])
    torch.testing.assert_close(scaled[turns < low], plain[turns < low] / factor)
    middle = (turns > low) & (turns < high)
    assert middle.any() and ((scaled < plain) & (scaled > plain / factor))[middle].all()
