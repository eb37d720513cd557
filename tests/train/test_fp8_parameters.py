"""FP8 parameters: weights on the FP8 grid with FP32 masters, in checkpoints that say so, refuse, and convert."""

import json
import re

import pytest
import torch
from typer.testing import CliRunner

from labkit.comm.ranks import RanksFailed
from labkit.errors import LabError
from labkit.precision import flags
from labkit.precision.config import PrecisionSpec
from labkit.precision.registry import get_backend
from labkit.train.checkpoint_cli import checkpoint as commands
from labkit.train.optim import MasterAdamW
from labkit.train.reformat import find_checkpoint, load_flat, reformat
from tests.train import training_jobs as jobs
from tests.train.training_jobs import same_weights as same
from tests.train.training_jobs import small_config
from week16_fp8.blockwise import on_grid
from week16_fp8.emulated import BlockNumerics, GridParameters

LINEARS = 14
BLOCKS = dict(backend="emulated", recipe="block")


def config(fp8=True, **changes):
    precision = {**BLOCKS, "fp8_parameters": fp8, **changes.pop("precision", {})}
    return small_config(**{**dict(checkpoint_every=2, eval_batches=1, precision=precision), **changes})


def here(config, run_dir=None, hooks=()):
    return jobs.here(config, run_dir, hooks, job=jobs.run_converted)[0]


def linear_weights(result):
    return {name: w for name, w in result["weights"].items() if ".attn.w" in name or ".ffn.w" in name}


# ---- the optimizer


def pair():
    """(plain parameter under AdamW, FP8 parameter under MasterAdamW), from the same value."""
    plain = torch.nn.Parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))
    fp8 = torch.nn.Parameter(plain.detach().clone())
    parameters = GridParameters({})
    master = fp8.detach().clone()
    parameters.store(fp8, master)
    options = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    adamw = torch.optim.AdamW([{"params": [plain], "weight_decay": 0.1}], **options)
    return (
        plain,
        adamw,
        fp8,
        MasterAdamW([{"params": [fp8], "weight_decay": 0.1}], {fp8: master}, parameters, **options),
    )


def test_the_master_is_what_adamw_makes_of_an_ordinary_weight():
    plain, adamw, fp8, ours = pair()
    assert torch.equal(ours.held(fp8), on_grid(plain.detach(), True)) and ours.held(plain) is plain
    for step in range(5):
        plain.grad = torch.randn(16, 16, generator=torch.Generator().manual_seed(step + 1))
        fp8.grad = plain.grad.clone()
        adamw.step()
        ours.step()
        assert torch.equal(ours.masters()[fp8], plain) and torch.equal(fp8, on_grid(plain.detach(), True))
    assert not torch.equal(fp8, plain)


# ---- the run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Six steps with FP8 parameters and six without, checkpoints of steps 4 and 6."""
    folder = tmp_path_factory.mktemp("runs")
    return {fp8: (here(config(fp8), folder / str(fp8)), folder / str(fp8)) for fp8 in (True, False)}


def test_with_and_without_are_one_training_where_nothing_but_the_block_rounding_rounds(runs):
    """Unsharded, in FP32: the product rounds the weight either way, so only the stored weights differ."""
    (with_, _), (without, _) = runs[True], runs[False]
    assert with_["losses"] == without["losses"] and with_["heldout"] == without["heldout"]
    same(linear_weights(with_), {name: on_grid(w, True) for name, w in linear_weights(without).items()})
    assert not torch.equal(with_["weights"]["layers.0.attn.wq.weight"], without["weights"]["layers.0.attn.wq.weight"])


def test_evidence_counts_the_weights_that_hold_fp8(runs):
    assert [runs[way][0]["evidence"].get("fp8_parameters") for way in (True, False)] == [LINEARS, None]
    backend = get_backend("emulated")
    model = jobs.plain_model(small_config())
    backend.convert(model, PrecisionSpec("block", ("head",), fp8_parameters=True))
    assert backend.evidence(model)["fp8_parameters"] == 0  # asked for, and not yet done
    backend.parameters.quantise()
    model.layers["0"].attn.wq.weight.data.add_(1e-3)
    assert backend.evidence(model)["fp8_parameters"] == LINEARS - 1


def test_a_resume_is_bit_for_bit(runs, tmp_path):
    here(config(), tmp_path, (jobs.StopAt(2),))
    resumed = here(config(), tmp_path)
    assert resumed["resumed_from"] == 2 and resumed["losses"] == runs[True][0]["losses"]
    same(resumed["weights"], runs[True][0]["weights"])


def test_going_back_in_the_middle_of_a_run_is_bit_for_bit(runs, tmp_path):
    """Codes and masters are put back into tensors that are in use."""
    recovery = {"rollback_after": 1, "factor": 1.0, "skip_data": False}
    result = here(config(recovery=recovery), tmp_path, (jobs.Burst(5, 1),))
    assert result["recovery"]["rollbacks"] == [[5, 4]] and result["losses"] == runs[True][0]["losses"]
    same(result["weights"], runs[True][0]["weights"])


def test_a_checkpoint_holds_values_and_masters(runs):
    tensors = load_flat(find_checkpoint(runs[True][1]))
    name = "layers.1.ffn.w2.weight"
    master, value = tensors[f"optimizer.state.{name}.master"], tensors[f"model.{name}"]
    assert torch.equal(value, on_grid(master, True)) and not torch.equal(value, master)
    assert sum(key.endswith(".master") for key in tensors) == LINEARS
    assert not any(key.endswith(".master") for key in load_flat(find_checkpoint(runs[False][1])))


# ---- flags: carried, shown, compared


def manifest_of(run_dir):
    return json.loads((find_checkpoint(run_dir) / "manifest.json").read_text())["body"]


def test_a_checkpoint_carries_its_flags(runs):
    body = manifest_of(runs[True][1])["precision"]
    assert len(body.pop("linears")) == LINEARS
    made = dict(BLOCKS, forward="e4m3", backward="e4m3", scaling="block", block=128, phase="fp8")
    assert body == dict(made, power_of_two=True, amax_epsilon=0.0, fp8_parameters=True)
    assert manifest_of(runs[False][1])["precision"]["fp8_parameters"] is False


@pytest.mark.parametrize(
    "backend, recipe, numbers",
    [
        ("bf16", "bf16", (None, None, None, None, None)),
        ("emulated", "tensorwise", ("e4m3", "e5m2", "tensor", False, 0.0)),
        ("broken-e5m2", None, ("e5m2", "e5m2", "tensor", False, 1e-12)),
        ("torchao", "rowwise", ("e4m3", "e4m3", "row", True, 1e-12)),
    ],
)
def test_the_flags_of_every_backend(backend, recipe, numbers):
    backend = get_backend(backend)
    backend.convert(jobs.plain_model(small_config()), PrecisionSpec(recipe, ("head",)))
    found = backend.state.flags()
    assert tuple(found[k] for k in ("forward", "backward", "scaling", "power_of_two", "amax_epsilon")) == numbers
    assert found["fp8_parameters"] is False and json.loads(json.dumps(found)) == found


def test_other_parameters_are_refused_in_one_sentence_that_names_both_sides(runs):
    with pytest.raises(RanksFailed) as error:
        here(config(False), runs[True][1])
    assert re.search(
        r"step-00000006: it holds FP8 parameters .emulated block. and this run has parameters in high precision "
        r".emulated block.: set fp8_parameters = true in .precision., or .*convert OLD_RUN NEW_RUN --to bf16`\.$",
        str(error.value.error),
    )
    with pytest.raises(LabError, match="it holds parameters in high precision .* has FP8 parameters .*--to fp8"):
        here(config(True), runs[False][1])


@pytest.mark.parametrize(
    "key, was, said",
    [
        ("amax_epsilon", 1e-4, "trained with an amax epsilon of 0.0 (emulated block) and this run has 0.0001"),
        ("power_of_two", False, "trained with power-of-two scales: yes (emulated block) and this run has no"),
        ("block", 64, "a block length of 128"),
    ],
)
def test_other_numbers_are_refused(runs, monkeypatch, key, was, said):
    """A library's default can change under an unchanged configuration: only the flags can tell."""
    real = BlockNumerics.flags
    monkeypatch.setattr(BlockNumerics, "flags", lambda self: {**real(self), key: was})
    fp8 = key != "power_of_two"  # FP8 parameters without such scales are refused before
    with pytest.raises(LabError) as error:
        here(config(fp8), runs[fp8][1])
    assert said in str(error.value) and "another library version" in str(error.value)


def test_other_phases_and_backends_are_shown_and_old_checkpoints_pass():
    now = {"backend": "te", "recipe": "block", "phase": "fp8", "fp8_parameters": False, **flags.HIGH}
    assert flags.mismatch(now, now) is None
    assert "saved in the bf16 phase of its schedule" in flags.mismatch({**now, "phase": "bf16"}, now)
    other = flags.mismatch({**now, "recipe": "current"}, now)
    assert "trained by te current and this run computes by te block" in other
    assert flags.mismatch(None, now) is flags.mismatch(now, None) is flags.other_parameters(None, now) is None


def test_masters_that_round_to_something_else_here_are_refused(runs, monkeypatch):
    monkeypatch.setattr(GridParameters, "store", lambda self, p, master: p.data.copy_(on_grid(master, False)))
    with pytest.raises(LabError, match="its FP8 weight layers.0.* is not what its master weight rounds to"):
        here(config(), runs[True][1])


# ---- conversion


def weights_in(folder):
    return {key: value for key, value in load_flat(find_checkpoint(folder)).items() if isinstance(value, torch.Tensor)}


def test_bf16_to_fp8_to_bf16_is_the_rounding_to_the_grid(runs, tmp_path):
    source = weights_in(runs[False][1])
    reformat(runs[False][1], tmp_path / "fp8", "fp8")
    reformat(tmp_path / "fp8", tmp_path / "back", "bf16")
    named = {f"model.{name}" for name in linear_weights(runs[False][0])}
    rounded = {key: on_grid(value, True) if key in named else value for key, value in source.items()}
    same(weights_in(tmp_path / "back"), rounded)
    reformat(tmp_path / "fp8", tmp_path / "master", "bf16", masters=True)
    same(weights_in(tmp_path / "master"), source)


@pytest.mark.parametrize("masters", [False, True])
def test_fp8_to_bf16_to_fp8_is_exact(runs, tmp_path, masters):
    source = weights_in(runs[True][1])
    reformat(runs[True][1], tmp_path / "bf16", "bf16", masters=masters)
    reformat(tmp_path / "bf16", tmp_path / "back", "fp8")
    # Without the masters, what they had beyond FP8 was given up on the way.
    kept = {k: on_grid(value, True) if not masters and k.endswith(".master") else value for k, value in source.items()}
    same(weights_in(tmp_path / "back"), kept)


@pytest.mark.parametrize("fp8", [True, False])
def test_a_converted_run_goes_on(runs, tmp_path, fp8):
    """By the test above, with and without are the same training here: so is the one that changes in the middle."""
    straight, _ = runs[fp8]
    here(config(not fp8), tmp_path / "old", (jobs.StopAt(4),))
    made = reformat(tmp_path / "old", tmp_path / "new", "fp8" if fp8 else "bf16", masters=True)
    assert made == tmp_path / "new" / "checkpoints" / "step-00000004"
    got = here(config(fp8), tmp_path / "new")
    assert got["resumed_from"] == 4 and got["losses"] == straight["losses"]
    same(got["weights"], straight["weights"])


def test_what_cannot_be_converted_is_said(runs, tmp_path):
    rows, hurt, new = (tmp_path / name for name in ("rows", "hurt", "new"))
    here(config(False, steps=2, precision={"recipe": "tensorwise"}), rows)
    here(config(steps=2), hurt)
    file = find_checkpoint(hurt) / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])
    for source, target, to, complaint in (
        (runs[True][1], new, "fp8", "has FP8 parameters already"),
        (runs[False][1], new, "bf16", "has parameters in high precision already"),
        (tmp_path, new, "fp8", "holds no checkpoint: give a run's folder"),
        (runs[True][1], new, "fp16", "to bf16 or fp8, not to 'fp16'"),
        (runs[False][1], runs[False][1], "fp8", "exists: choose another folder"),
        (rows, new, "fp8", "is of emulated tensorwise, and FP8 parameters go with recipe block"),
        (hurt, new, "bf16", "is damaged: __0_0.distcp has"),
    ):
        with pytest.raises(LabError, match=complaint):
            reformat(source, target, to)
    assert not new.exists()


# ---- the commands


def lab(*words):
    result = CliRunner().invoke(commands, [str(word) for word in words])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_commands(runs, tmp_path):
    assert "step 6, saved on 1 rank" in lab("show", runs[True][1]) and "block of 128" in lab("show", runs[True][1])
    assert "parameters: in high precision" in lab("show", runs[False][1] / "checkpoints" / "step-00000004")
    assert lab("convert", runs[False][1], tmp_path / "fp8", "--to", "fp8").strip().endswith("step-00000006")
    assert "converted to fp8 parameters from False" in lab("show", tmp_path / "fp8")  # the old run's name


# ---- two ranks


def wide(fp8=True, **changes):
    """256 rows are one block of 128 a rank."""
    model = dict(d_model=256, n_layers=1, n_heads=2, n_kv_heads=2, d_ffn=256)
    return config(fp8, **{**dict(model=model, steps=4, batch_size=4, seq_len=8, eval_every=4, lr=1e-3), **changes})


@pytest.mark.thorough
def test_two_ranks_under_fsdp2(two, tmp_path):
    straight = two.run(jobs.run_prepared, wide(), timeout=120.0)
    assert straight[0]["losses"] == straight[1]["losses"] and straight[0]["losses"][4] < straight[0]["losses"][1]
    assert all(rank["evidence"]["fp8_parameters"] == 7 for rank in straight)
    for name, weight in linear_weights(straight[0]).items():
        assert torch.equal(on_grid(weight, True), weight), name  # whole, as in the shards
    two.run(jobs.run_prepared, wide(), tmp_path / "run", (jobs.StopAt(2),), timeout=120.0)
    resumed = two.run(jobs.run_prepared, wide(), tmp_path / "run", timeout=120.0)[0]
    assert resumed["resumed_from"] == 2 and resumed["losses"] == straight[0]["losses"]
    same(resumed["weights"], straight[0]["weights"])
    reformat(tmp_path / "run", tmp_path / "bf16", "bf16")
    plain = two.run(jobs.run_prepared, wide(False, steps=4), tmp_path / "bf16", timeout=120.0)[0]
    assert plain["resumed_from"] == 4
    same(plain["weights"], straight[0]["weights"])


def test_a_block_of_rows_must_lie_on_one_rank(two):
    odd = wide(model=dict(d_model=256, n_layers=1, n_heads=2, n_kv_heads=2, d_ffn=384))
    with pytest.raises((LabError, RanksFailed), match=r"multiples of 256.*layers.0.ffn.w1 \(384\)"):
        two.run(jobs.run_prepared, odd, timeout=120.0)
