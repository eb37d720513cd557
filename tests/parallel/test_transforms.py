"""The order of transforms, what each does to the model, and the whole chain under FSDP2 on two ranks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from labkit.comm.ranks import RankPool
from labkit.errors import LabError
from labkit.parallel import transforms
from labkit.precision.config import PrecisionConfig
from labkit.precision.registry import get_backend
from labkit.train.config import TrainConfig
from tests.precision import precision_jobs as jobs
from tests.precision.precision_jobs import LINEARS, MODEL, convert, decoder, loss_of, tokens

CPU = SimpleNamespace(device=torch.device("cpu"), rank=0, size=1)


def config(backend="emulated", **changes):
    return TrainConfig(model=MODEL, seq_len=32, precision=PrecisionConfig(backend=backend), **changes)


def test_the_order(monkeypatch):
    calls = []

    def note(name):
        return lambda model, *args: calls.append(name)

    monkeypatch.setattr(transforms, "checkpoint_blocks", note("checkpoint"))
    monkeypatch.setattr(transforms, "compile_model", note("compile"))
    monkeypatch.setattr(transforms, "check_compiler", lambda device: None)

    def shard(model, group, param_dtype, **how):
        calls.append(("shard", type(model.layers["0"].attn.wq).__name__, param_dtype))

    monkeypatch.setattr(transforms, "shard", shard)
    transforms.prepare(decoder(), config(compile=True, activation_checkpointing="block"), CPU, get_backend("emulated"))
    assert calls == ["checkpoint", "compile", ("shard", "EmulatedLinear", torch.bfloat16)]
    calls.clear()
    report = transforms.prepare(decoder(), config("fp32"), CPU, get_backend("fp32"))
    assert calls == [("shard", "Linear", torch.float32)] and report.backend == "fp32"


@pytest.mark.parametrize(
    "changes, how",
    [
        ({}, {"reshard_after_forward": True, "head_apart": True}),
        ({"reshard_after_forward": False}, {"reshard_after_forward": False, "head_apart": True}),
        ({"loss_chunk": 16}, {"reshard_after_forward": True, "head_apart": False}),  # a head that is called in pieces
    ],
)
def test_what_stays_gathered_comes_from_the_config(monkeypatch, changes, how):
    seen = []
    monkeypatch.setattr(transforms, "shard", lambda *args, **options: seen.append(options))
    transforms.prepare(decoder(), config("bf16", **changes), CPU, get_backend("bf16"))
    assert seen == [{**how, "mesh": None}]  # all ranks are data-parallel


@pytest.mark.parametrize("backend, recipe, now", [("bf16", None, True), ("amp", "fp16", False)])
def test_fp16_takes_the_gradient_of_a_loss_in_pieces_when_it_is_scaled(monkeypatch, backend, recipe, now):
    """Unscaled, the gradient of a mean over many tokens is below what FP16 can hold, whoever computes the head."""
    monkeypatch.setattr(transforms, "shard", lambda *args, **how: None)
    precision = PrecisionConfig(backend=backend, recipe=recipe)
    model, made = decoder(), get_backend(backend)
    convert = made.convert
    monkeypatch.setattr(made, "convert", lambda *args: replace(convert(*args), converted=[]))
    chosen = TrainConfig(model=MODEL, seq_len=32, loss_chunk=16, precision=precision)
    transforms.prepare(model, chosen, CPU, made)
    assert model.loss.args == (model, 16) and model.loss.keywords == {"now": now}


@pytest.mark.parametrize("skip, converted, now", [([], 15, False), (["head", "wo"], 12, True)])
def test_a_converted_head_takes_its_gradient_outside_of_autocast(monkeypatch, skip, converted, now):
    """And skip list and recipe come from the config."""
    monkeypatch.setattr(transforms, "shard", lambda *args, **how: None)
    precision, model = PrecisionConfig(backend="broken", recipe="stale", skip=skip), decoder()
    chosen = TrainConfig(model=MODEL, seq_len=32, loss_chunk=16, precision=precision)
    report = transforms.prepare(model, chosen, CPU, get_backend("broken"))
    assert report.recipe == "stale" and len(report.converted) == converted and model.loss.keywords == {"now": now}


def gradients(model, backend):
    model.zero_grad()
    loss = loss_of(model, backend, tokens())
    loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("name", ["bf16", "emulated", "torchao", "broken-stale"])
def test_checkpointing_changes_nothing_but_what_is_kept(name):
    model, backend = decoder(torch.bfloat16), get_backend(name)
    convert(backend, model, None, ["head"])
    keys = list(model.state_dict())
    loss, grads = gradients(model, backend)
    runs = []
    model.layers["0"].attn.core.register_forward_hook(lambda *args: runs.append(1))
    transforms.checkpoint_blocks(model, backend)
    again, same = gradients(model, backend)
    assert again == loss and all(map(torch.equal, grads, same)) and list(model.state_dict()) == keys
    assert len(runs) == 2  # forward, and again in backward


@pytest.mark.parametrize("name, checkpointing", [("torchao", False), ("bf16", True)])
def test_compiled_blocks_are_one_compilation_and_probes_run_eagerly(name, checkpointing):
    """compiler "eager": torch.compile's tracing without the code generation, which is torch's own matter and slow."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model, backend = decoder(torch.bfloat16, MODEL.replace(n_layers=3)), get_backend(name)
    convert(backend, model, None, ["head"])
    keys = list(model.state_dict())
    loss, grads = gradients(model, backend)
    if checkpointing:
        transforms.checkpoint_blocks(model, backend)
    transforms.compile_model(model, backend, "eager")
    again, same = gradients(model, backend)
    assert again == loss and all(map(torch.equal, grads, same)) and list(model.state_dict()) == keys
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == 3  # one for all blocks, the last norm, the loss
    with backend.probe():
        probed, _ = gradients(model, backend)
    assert probed == loss and len(backend.scales) == (4 if name == "torchao" else 1) * 21
    gradients(model, backend)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs  # looking costs no recompilation


@pytest.mark.parametrize(
    "name, parts", [("torchao", [""]), ("te", [".attn_norm", ".attn.core", ".ffn_norm", ".ffn.act"])]
)
def test_what_is_compiled(name, parts, monkeypatch):
    compiled = {f"layers.{i}{part}" for i in (0, 1) for part in parts} | {"norm", "criterion"}
    monkeypatch.setattr(torch, "compile", lambda forward, backend: ("compiled", forward))
    model = decoder()
    transforms.compile_model(model, get_backend(name))
    assert {n for n, m in model.named_modules() if isinstance(vars(m).get("forward"), tuple)} == compiled


def test_no_compiler_is_one_sentence(monkeypatch):
    import torch._inductor.cpp_builder as builder

    def none():
        raise RuntimeError("no working C++ compiler")

    monkeypatch.setattr(builder, "get_cpp_compiler", none)
    model = decoder()
    with pytest.raises(LabError, match=r"compile = true needs a C\+\+ compiler .* set compile = false"):
        transforms.prepare(model, config(compile=True), CPU, get_backend("emulated"))
    assert type(model.layers["0"].attn.wq).__name__ == "Linear"  # said before anything is changed


@pytest.fixture(scope="module")
def two():
    with RankPool(2) as pool:
        yield pool


@pytest.mark.parametrize(
    "name, recipe, checkpointing",
    [
        ("torchao", "tensorwise", "none"),
        ("torchao", "rowwise", "block"),
        *((n, None, "none") for n in ("broken-e5m2", "fp32")),
    ],
)
def test_two_ranks_train_under_fsdp2(two, name, recipe, checkpointing):
    results = two.run(jobs.train_sharded, name, recipe, checkpointing, timeout=180.0)
    for r in results:
        assert r["converted"] == r["evidence"]["converted"] == LINEARS
        assert r["scales"] == (LINEARS if name == "fp32" else 4 * LINEARS)
        dtype = "torch.float32" if name == "fp32" else "torch.bfloat16"
        assert r["inside"] == {f"('Parameter', {dtype})"}  # whole and in the compute type, not a shard
        assert r["losses"][2] < r["losses"][0] - 0.2  # it learns these four rows: 5.6 -> 5.0
        assert r["keys"] == sorted(decoder().state_dict())
    # Four rows on one rank or two on each of two: the same mean loss, up to BF16's rounding of each rank's part.
    model, backend = decoder(torch.float32 if name == "fp32" else torch.bfloat16), get_backend(name)
    convert(backend, model, recipe, ["head"])
    alone = loss_of(model, backend, tokens()).item()
    assert sum(r["losses"][0] for r in results) / 2 == pytest.approx(alone, abs=2e-3)
