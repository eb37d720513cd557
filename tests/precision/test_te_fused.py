"""Fused blocks (te_fused.py) against a stand-in: same weights, same names, same result as the plain block."""

import pytest
import torch

from labkit.errors import LabError
from labkit.model.config import ModelConfig
from labkit.model.decoder import RotaryAttention, Transformer, init_weights, rotary_tables
from labkit.parallel.transforms import checkpoint_blocks
from labkit.precision.registry import get_backend
from labkit.precision.te_fused import Core, lean_swiglu_backward
from tests.precision import fake_te
from tests.precision.precision_jobs import convert, loss_of

SIZE = ModelConfig(vocab_size=64, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ffn=48, max_seq_len=32)


@pytest.fixture
def te(monkeypatch):
    return fake_te.install(monkeypatch)


def models(skip=("head",)):
    plain, fused = (init_weights(Transformer(SIZE), 3) for _ in range(2))
    with torch.no_grad():
        for p, f in zip(plain.parameters(), fused.parameters()):
            p.add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))  # norms not all one
            f.copy_(p)
    backend = get_backend("te")
    convert(backend, fused, "delayed", skip, device="cuda", fused=True)
    return plain, fused, backend


def batch(seed=1, length=9):
    return torch.randint(0, 64, (2, length), generator=torch.Generator().manual_seed(seed))


def same_gradients(plain, fused):
    """FP32 sums in another order, where products were joined."""
    others = dict(fused)
    for name, p in plain.named_parameters():
        torch.testing.assert_close(p.grad, others[name].grad, rtol=1e-4, atol=1e-6, msg=name)


def test_names_and_parameters_stay_those_of_the_plain_model(te):
    plain, fused, backend = models()
    shapes = [{name: tuple(p.shape) for name, p in model.named_parameters()} for model in (plain, fused)]
    assert shapes[0] == shapes[1] and fused.state_dict().keys() == plain.state_dict().keys()
    found = backend.evidence(fused)
    assert found["converted"] == 14, "a fused module counts for the linears that it computes"
    kinds = {kind.rpartition(".")[2]: n for kind, n in found["module_types"].items()}
    assert kinds["FusedLinear"] == 2 and kinds["FusedMLP"] == 2 and kinds["TELinear"] == 2 and kinds["Linear"] == 1


def held(weights):
    """Bytes in memory of the weights that are no parameter: the joined ones."""
    return sum(w.untyped_storage().nbytes() for w in weights if not w.is_leaf)


def test_a_joined_weight_is_in_memory_for_its_own_forward_and_backward_alone(te):
    _, fused, backend = models()
    tokens = batch()
    during = []
    for block in fused.blocks():
        for module in (block.attn.wqkv, block.ffn.mlp):
            module.register_full_backward_hook(lambda *_: during.append(held(te.weights)))
    loss = loss_of(fused, backend, tokens)
    joined = [w for w in te.weights if not w.is_leaf]
    assert [tuple(w.shape) for w in joined] == [(64, 32), (96, 32)] * 2  # q|k|v and gate|up of two blocks
    assert held(te.weights) == 0, "after the forward"
    loss.backward()
    assert held(te.weights) == 0, "after the backward, though the graph is still there"
    assert during and max(during) <= 4 * 96 * 32, "never two at once"


def test_the_backward_multiplies_with_the_weights_as_they_are_then(te):
    """FSDP2 frees a block's weights after its forward: what a backward sees was gathered again, elsewhere."""
    plain, fused, backend = models()
    tokens = batch()
    plain(tokens[:, :-1], tokens[:, 1:]).backward()
    loss = loss_of(fused, backend, tokens)
    before = list(fused.named_parameters())
    for block in fused.blocks():
        for module in (block.attn.wqkv, block.ffn.mlp):
            for holder in module.borrowed[1][module.first]:
                again = torch.nn.Parameter(holder.weight.detach().clone())
                holder.weight.data = torch.full_like(holder.weight, float("nan"))
                holder.weight = again
    loss.backward()
    same_gradients(plain, before)


@pytest.mark.parametrize("passes", [1, 2])
def test_loss_and_every_gradient_are_those_of_the_plain_block(te, passes):
    """Also of several forwards before their backwards: each has a weight of its own."""
    plain, fused, backend = models()
    losses = []
    for tokens in map(batch, range(passes)):
        want = plain(tokens[:, :-1], tokens[:, 1:])
        want.backward()
        losses.append(loss_of(fused, backend, tokens))
        torch.testing.assert_close(losses[-1], want)
    for loss in losses:
        loss.backward(retain_graph=True)
    same_gradients(plain, fused.named_parameters())
    losses[0].backward()  # a graph that was kept can be gone through once more


def test_a_block_that_is_computed_again_in_the_backward_gets_the_same_gradients(te):
    plain, fused, backend = models()
    checkpoint_blocks(fused, backend)
    tokens = batch()
    plain(tokens[:, :-1], tokens[:, 1:]).backward()
    loss = loss_of(fused, backend, tokens)
    assert len(te.weights) > 4 and held(te.weights) == 0, "no joined weight of the first run is kept"
    loss.backward()
    assert te.checkpoints == 2
    same_gradients(plain, fused.named_parameters())


def test_weights_without_a_gradient_stay_whole(te):
    _, fused, backend = models()
    for name, p in fused.named_parameters():
        if name.startswith("layers"):
            p.requires_grad_(False)
    tokens = batch()
    loss_of(fused, backend, tokens).backward()
    assert fused.tok_embed.weight.grad.isfinite().all() and fused.tok_embed.weight.grad.any()


def test_the_backward_keeps_v_and_not_all_of_q_k_v():
    """Traced, as the compiler does it: what is saved decides how many sequences fit."""
    core = Core(RotaryAttention(), [8 * 16, 2 * 16, 2 * 16], 16)
    cos, sin = rotary_tables(8, 16, 1e4, torch.device("cpu"))
    saved = []

    def keep(x):
        saved.append(x.untyped_storage().nbytes())
        return x

    compiled = torch.compile(core.forward, backend="aot_eager_decomp_partition")
    qkv = torch.randn(1, 8, 12 * 16, requires_grad=True) * 1.0
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        compiled(qkv, cos, sin)
    assert max(saved) < qkv.nbytes


def test_a_probe_sees_what_the_fused_modules_quantise(te):
    plain, fused, backend = models()
    tokens = batch(length=17)
    with backend.probe():
        loss_of(fused, backend, tokens).backward()
    stats = backend.scales
    parts = {"attn.wqkv": "input weight grad output", "ffn.mlp.w13": "input weight", "ffn.mlp.w2": "input weight grad"}
    slots = [f"{part}.{slot}" for part, some in parts.items() for slot in some.split()]
    ins = {f"layers.{i}.{slot}" for i in (0, 1) for slot in (*slots, "ffn.mlp.output")}
    assert ins <= stats.keys()
    block, seen = plain.layers["1"], {}
    block.ffn.w2.register_forward_pre_hook(lambda m, args: seen.update(x=args[0]))
    plain(tokens[:, :-1])
    assert stats["layers.1.ffn.mlp.w2.input"].amax == pytest.approx(seen["x"].abs().max().item(), rel=1e-4)
    joined = torch.cat([block.attn.wq.weight, block.attn.wk.weight, block.attn.wv.weight])
    assert stats["layers.1.attn.wqkv.weight"].amax == pytest.approx(joined.abs().max().item(), rel=1e-6)
    assert stats["layers.1.ffn.mlp.output"].sqnr > 100, "the stand-in rounds nothing: only fp32's own rounding is left"


def test_scaling_state_of_the_second_product_is_its_own(te):
    _, fused, backend = models()
    tokens = torch.zeros(1, 16, dtype=torch.int64)
    with backend.autocast():
        fused(tokens, tokens)
    module = fused.layers["0"].ffn.mlp
    module.fp8_meta["scaling_fwd"].scale.copy_(torch.arange(6.0))
    module.fp8_meta["scaling_bwd"].scale.copy_(torch.arange(10.0, 14.0))
    x = torch.zeros(16, 32)
    found = {(part, slot): backend._rounding(port, slot, t)[1].item() for part, slot, t, port in module.observed(x)}
    assert found == {(".w13", "input"): 0, (".w13", "weight"): 1, (".w2", "input"): 3, (".w2", "weight"): 4}
    assert backend._rounding(module.last()[1], "grad", x)[1].item() == 12
    state = backend.state.state_dict()
    assert state["layers.0.ffn.mlp/scaling_fwd/scale"].tolist() == [0, 1, 2, 3, 4, 5]
    _, _, other = models()
    other.state.load_state_dict(state)
    assert other.state.state_dict()["layers.0.ffn.mlp/scaling_fwd/scale"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_skipped_linear_cannot_be_fused(te):
    with pytest.raises(LabError, match="fused = true .* take layers.0.attn.wk out"):
        models(skip=("head", "layers.0.attn.wk"))


class Quantizer:
    """Stands for a Transformer Engine quantizer: doubles, so that it shows."""

    def __call__(self, x):
        return 2 * x


@pytest.mark.parametrize(
    "delayed, ours, bias, value",
    [(True, True, None, 1.0), (False, True, None, 2.0), (True, False, "summed", 3.0), (False, False, "summed", 3.0)],
)
def test_swiglu_backward_skips_the_bias_of_our_modules_only(delayed, ours, bias, value):
    """dL/dz is 1 where the derivative's kernel casts it, 2 where the quantizer does, 3 where the bias's sum does."""
    quantizer = Quantizer()
    if ours:
        quantizer.without_bias = True

    def derivative(dy, z, quantizer):
        return torch.ones(2, 8)

    def bias_and_quantise(dz, quantizer):
        return "summed", dz * 3

    found = lean_swiglu_backward(delayed, derivative, bias_and_quantise, torch.ones(2, 4), torch.ones(2, 8), quantizer)
    assert found[0] == bias and (found[1] == value).all()
