"""A mixture of experts against a slow one, and what it promises to training, stages, conversion and FLOPs."""

import copy

import pytest
import torch
import torch.nn.functional as F

from labkit.comm.ranks import RankPool, run_ranks
from labkit.errors import LabError
from labkit.model import moe
from labkit.model.config import ModelConfig
from labkit.model.decoder import Block, FeedForward, Transformer, init_weights
from labkit.model.flops import flops_per_token, linear_params, n_params
from labkit.parallel.stages import stage_layers
from labkit.parallel.transforms import checkpoint_blocks, compile_model
from labkit.precision.config import PrecisionSpec
from labkit.precision.registry import get_backend
from labkit.train.config import TrainConfig
from tests.train import training_jobs as jobs
from tests.train.training_jobs import Hook, small_config

SHAPE = dict(vocab_size=64, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, d_ffn=32, max_seq_len=32)
SMALL = ModelConfig(**SHAPE, experts=4, topk=2)
EXPERTS = {f"layers.{i}.ffn.experts" for i in range(3)}
ROUTERS = {f"layers.{i}.ffn.router" for i in range(3)}


def tokens(batch=2, positions=12):
    return torch.randint(64, (batch, positions), generator=torch.Generator().manual_seed(0))


def lively(experts=4, topk=2):
    """One layer with weights so large that every mistake shows, and inputs for it."""
    config, draw = SMALL.replace(experts=experts, topk=topk), torch.Generator().manual_seed(experts)
    layer = Block("layers.0", config, lambda name, i, o: torch.nn.Linear(i, o, bias=False)).ffn
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.randn(p.shape, generator=draw) * 0.3)
    return layer, torch.randn(2, 9, 32, generator=draw)


@pytest.mark.parametrize("experts, topk", [(4, 2), (4, 1), (3, 3), (9, 2)])
def test_each_token_gets_its_experts_by_their_shares(experts, topk):
    """Against a loop over tokens in float64. Sums of at most 32 terms: 1e-5 of the largest is far above FP32's."""
    layer, x_BTD = lively(experts, topk)
    w = {name: p.detach().double() for name, p in layer.named_parameters()}
    want, fell = [], [0] * experts
    for x in x_BTD.flatten(0, 1).double():
        p = (w["router.weight"] @ x).softmax(0)
        chosen = sorted(range(experts), key=lambda e: -p[e])[:topk]
        y = 0.0
        for e in chosen:
            fell[e] += 1
            gate, up = w["experts.w1"][e] @ x, w["experts.w3"][e] @ x
            y = y + p[e] / sum(p[c] for c in chosen) * (w["experts.w2"][e] @ (gate * torch.sigmoid(gate) * up))
        want.append(y)
    got = layer(x_BTD)
    want = torch.stack(want).view_as(got)
    assert (got.double() - want).abs().max() < 1e-5 * want.abs().max()
    assert layer.load_E.tolist() == fell


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_kernel_for_all_experts_is_a_loop_over_them(dtype):
    """Values and gradients, an expert without rows among them. Both sum 16 products in FP32 and round once: at most a
    unit in the last place apart."""
    draw, out = torch.Generator().manual_seed(0), []
    x, w, dy = (torch.randn(s, generator=draw).to(dtype) for s in ((40, 16), (4, 24, 16), (40, 24)))
    ends = torch.tensor([8, 8, 32, 40], dtype=torch.int32)
    assert moe.one_kernel("cpu", dtype), "torch 2.11 and newer have it on a CPU"
    for product in (moe.grouped, moe.one_by_one):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = product(a, b, ends)
        y.backward(dy)
        out.append((y, a.grad, b.grad))
    near = dict(rtol=2 * torch.finfo(dtype).eps, atol=2e-6 if dtype.itemsize == 4 else 0.02)
    for one, other in zip(*out):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, **near)
    assert not out[0][2][1].any(), "no row, no gradient"


def test_rows_are_padded_and_nobodys_row_is_used_twice():
    chosen = torch.tensor([[0, 3], [3, 1], [3, 0], [1, 3], [3, 0]])
    row, ends, rows = moe.places(chosen, moe.load(chosen, 4))
    assert moe.load(chosen, 4).tolist() == [3, 2, 0, 5] and rows == 16 + 4 * 8
    assert ends.tolist() == [8, 16, 16, rows] and ends.dtype == torch.int32
    assert row.tolist() == [[0, 16], [17, 8], [18, 1], [9, 19], [20, 2]]


def test_the_router_computes_in_fp32_whatever_the_rest_does():
    layer, x = lively()
    exact = layer.router(x.flatten(0, 1))
    inside = {}
    layer.router.register_forward_hook(lambda m, args, p: inside.update(p=p))
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert torch.equal(inside["p"], exact) and y.dtype == torch.float32
    layer.bfloat16()(x.bfloat16())
    assert inside["p"].dtype == torch.float32 and (inside["p"].sum(-1) - 1).abs().max() < 1e-6


def test_balance_is_one_where_all_are_equal_and_its_gradient_takes_from_those_ahead():
    even = torch.full((8, 4), 0.25)
    assert moe.balance(even, torch.tensor([4, 4, 4, 4])).item() == 1.0
    one = F.one_hot(torch.zeros(8, dtype=torch.int64), 4).float()
    assert moe.balance(one, torch.tensor([8, 0, 0, 0])).item() == 4.0
    logits = torch.zeros(8, 4, requires_grad=True)
    moe.balance(logits.softmax(-1), torch.tensor([10, 3, 2, 1])).backward()
    assert (logits.grad[:, 0] > 0).all() and (logits.grad[:, 3] < 0).all(), "descent lowers the share of the first"


def test_the_balance_loss_is_in_training_alone():
    x = tokens()
    model = init_weights(Transformer(SMALL), 0)
    loss = model(x, x)
    added = SMALL.balance * sum(block.ffn.imbalance for block in model.blocks())
    model.eval()
    assert torch.allclose(loss - added, model(x, x), atol=1e-6) and 0.01 * 3 <= added < 0.01 * 3 * 1.5
    assert model(x).shape == (2, 12, 64)


def test_through_checkpoints_the_gradients_are_the_same():
    """The balance loss leaves a block by its side: recomputation must give it its gradient all the same."""
    grads = {}
    for recomputed in (False, True):
        model = init_weights(Transformer(SMALL.replace(balance=1.0)), 0)
        if recomputed:
            checkpoint_blocks(model, get_backend("fp32"))
        model(tokens(), tokens()).backward()
        grads[recomputed] = {name: p.grad for name, p in model.named_parameters()}
    assert all(torch.equal(grads[True][name], g) for name, g in grads[False].items())
    without = init_weights(Transformer(SMALL.replace(balance=0.0)), 0)
    without(tokens(), tokens()).backward()
    name = "layers.0.ffn.router.weight"
    assert not torch.allclose(dict(without.named_parameters())[name].grad, grads[True][name], rtol=0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("backend, recipe", [("fp32", None), ("torchao", "tensorwise"), ("broken", "e5m2")])
def test_compiled_it_is_the_same(backend, recipe):
    """A block whole, or what lies between its linears (broken). The compiler's front end alone: no C++ is compiled."""
    losses = []
    for compiled in (False, True):
        model, of = init_weights(Transformer(SMALL), 0), get_backend(backend)
        model.to(torch.float32 if backend == "fp32" else torch.bfloat16)
        of.convert(model, PrecisionSpec(recipe, ("head",)))
        if compiled:
            compile_model(model, of, compiler="aot_eager")
        loss = model(tokens(2, 16), tokens(2, 16))
        loss.backward()
        losses.append((loss.item(), model.layers["0"].ffn.router.weight.grad.float().norm().item()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5 if backend == "fp32" else 0.02)


# ---- names, values, counts


def test_weights_have_the_configs_names_and_shapes_and_first_values():
    model = init_weights(Transformer(SMALL), 3)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == SMALL.weight_shapes()
    experts = model.layers["1"].ffn.experts
    for weight, std in ((experts.w1, 0.02), (experts.w3, 0.02), (experts.w2, 0.02 / 6**0.5)):
        assert weight.std().item() == pytest.approx(std, rel=0.05)  # of 4096 values: 1.1 % is one standard error
    assert model.layers["1"].ffn.router.weight.std().item() == pytest.approx(0.02, rel=0.25)
    assert isinstance(Transformer(ModelConfig(**SHAPE)).layers["0"].ffn, FeedForward)


def test_what_fuses_dense_networks_says_so():
    with pytest.raises(LabError, match="fused = true joins a dense feed-forward network"):
        TrainConfig(model=SMALL, seq_len=16, precision={"backend": "te", "fused": True})


def test_stages_are_the_model_cut():
    x, whole = tokens(), init_weights(Transformer(SMALL.replace(balance=1.0)), 0)
    stages = [init_weights(Transformer(whole.config, layers=stage_layers(SMALL, 2, s)), 0) for s in (0, 1)]
    parts = {name: p for stage in stages for name, p in stage.named_parameters()}
    assert all(torch.equal(parts[name], p) for name, p in whole.named_parameters())
    assert len(parts) == len(SMALL.weight_shapes())
    hidden = stages[0](x)
    loss = stages[1](hidden, x) + stages[0].balance_loss()
    assert torch.allclose(loss, whole(x, x))
    loss.backward()
    whole(x, x).backward()
    for name, p in whole.named_parameters():
        torch.testing.assert_close(parts[name].grad, p.grad, rtol=1e-4, atol=1e-7)


def test_flops_are_those_of_the_experts_that_a_token_meets():
    dense = ModelConfig(**SHAPE)
    expert, router = 3 * 32 * 32, 4 * 32
    assert linear_params(SMALL) == linear_params(dense) + 3 * (expert + router)
    assert linear_params(SMALL.replace(topk=1)) == linear_params(dense) + 3 * router
    assert n_params(SMALL) == n_params(dense) + 3 * (3 * expert + router)
    assert n_params(SMALL) == sum(p.numel() for p in Transformer(SMALL).parameters())
    more = flops_per_token(SMALL, 32, causal=True) - flops_per_token(dense, 32, causal=True)
    assert more == 6 * 3 * (expert + router)


# ---- FP8 leaves router and experts alone


@pytest.mark.parametrize("backend", ["torchao", "emulated", "broken-e5m2", "week16"])
def test_fp8_leaves_router_and_experts_in_bf16_and_says_why(backend):
    model, of = init_weights(Transformer(SMALL), 0).bfloat16(), get_backend(backend)
    report = of.convert(model, PrecisionSpec(None, ("head",)))
    assert {name.rpartition(".")[2] for name in report.converted} == {"wq", "wk", "wv", "wo"}
    assert len(report.converted) == of.evidence(model)["converted"] == 12
    why = dict.fromkeys(ROUTERS, moe.Router.stays) | dict.fromkeys(EXPERTS, moe.Experts.stays)
    assert {name: reason for name, reason in report.skipped.items() if name != "head"} == why
    model(tokens(2, 16), tokens(2, 16)).backward()
    experts = model.layers["2"].ffn.experts
    assert experts.w1.dtype == experts.w1.grad.dtype == torch.bfloat16 and experts.w1.grad.any()


# ---- training


class Loads(Hook):
    """How many choices fell on each expert of each layer, by step."""

    def __init__(self):
        self.seen = []

    def after_step(self, loop):
        self.seen.append([block.ffn.load_E.tolist() for block in loop.model.blocks()])


def moe_config(**changes):
    shape = dict(d_ffn=32, experts=4, topk=2)
    return small_config(model={**shape, **changes.pop("model", {})}, **changes)


def job(group, config, run_dir=None, hooks=()):
    own = copy.deepcopy(hooks)
    return {**jobs.run(group, config, run_dir, own), "hooks": own}


def here(*args):
    return run_ranks(job, *args, size=1, backend="threads", timeout=120.0)[0]


@pytest.mark.thorough
def test_it_learns_and_every_expert_has_tokens():
    """The text counts on by 3, modulo 97. Whoever knows nothing but how often each token comes has a loss of at least
    ln 97 - 0.1 = 4.47 (the batches' starts are uniform); half of it takes the rule. Four experts with all choices
    equal have a quarter each; a tenth is far from the zero of an expert that has died."""
    result = here(moe_config(steps=120, batch_size=16, eval_every=120, warmup_steps=10, lr=5e-3), None, (Loads(),))
    assert result["heldout"][120] < 2.2
    late = torch.tensor(result["hooks"][0].seen[-20:]).double().sum(0)  # [layers, experts]
    assert (late / late.sum(1, keepdim=True)).min() > 0.1


def test_a_resumed_run_is_the_whole_run(tmp_path):
    config = moe_config(steps=4, eval_every=4, checkpoint_every=2)
    whole = here(config, tmp_path / "whole")
    here(config, tmp_path / "cut", (jobs.StopAt(2),))
    rest = here(config, tmp_path / "cut")
    assert rest["resumed_from"] == 2 and rest["heldout"] == whole["heldout"]
    assert all(torch.equal(rest["weights"][name], w) for name, w in whole["weights"].items())


@pytest.mark.thorough
def test_two_ranks_train_the_same_model():
    """Sharded by FSDP2, four experts over two ranks. Without the balance loss, which is of a rank's own tokens, it is
    one rank's training to the rounding of FP32's sums."""
    config = moe_config(steps=3, eval_every=3, model={"balance": 0.0})
    with RankPool(2) as two:
        both = two.run(jobs.run, config, None, (), True, timeout=180.0)
    alone = here(config)
    assert both[0]["losses"] == both[1]["losses"]
    for step, loss in alone["losses"].items():
        assert both[0]["losses"][step] == pytest.approx(loss, rel=1e-5)
    experts = "layers.1.ffn.experts.w2"
    torch.testing.assert_close(both[0]["weights"][experts], alone["weights"][experts], rtol=0, atol=1e-3 * 0.01 * 3)
