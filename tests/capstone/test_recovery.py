"""The loop around a step that is not finite: skipped, rate lowered, back to a checkpoint; and a damaged checkpoint."""

import json
import time
from pathlib import Path

import pytest
import torch

from capstone import assemble
from capstone.running import mine
from capstone.running.config import CapstoneConfig, degrees, setup_of
from capstone.running.mine import Loop
from capstone.survive import standing
from labkit.comm.ranks import run_ranks
from labkit.errors import LabError
from labkit.record.run import RunRecord
from week16_fp8.stretch import tensor_cores

SHAPE = dict(vocab_size=259, d_model=32, n_layers=2, n_heads=2, n_kv_heads=2, d_ffn=64, max_seq_len=16)


class Corpus:
    """Rows that depend on the number of the batch alone; which ones were read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def batch(self, number: int, rows: int, length: int, seed: int, part: str = "train") -> torch.Tensor:
        self.read += [number] if part == "train" else []
        drawn = torch.Generator().manual_seed(1000 * seed + number)
        return torch.randint(259, (rows, length + 1), generator=drawn)


def trained(group, folder: str, bad: list[int], steps: int = 10) -> dict:
    """A run on these ranks, in which rank 1 finds a NaN in these calls of `gradients`."""
    values = dict(model=SHAPE, steps=steps, seq_len=16, batch_size=4, eval_every=5, eval_batches=1)
    values |= dict(checkpoint_every=4, recovery=dict(lower_after=2, rollback_after=3), parallel=dict(tp=group.size))
    config = degrees(CapstoneConfig(**values, mixed_precision="fp32"), group.size)
    trainer, calls = assemble.assemble(setup_of(config), group), []
    gradients = trainer.gradients

    def spoilt(rows):
        loss = gradients(rows)
        calls.append(len(calls) + 1)
        if calls[-1] in bad and group.rank == 1:
            trainer.units[-1].shard.grad[0] = float("nan")
        return loss

    trainer.gradients = spoilt

    def opened(about, step):
        if group.rank:
            return None
        path = Path(folder)
        if (path / "run.json").exists():
            return RunRecord.open(path, resume_from=step + 1)
        return RunRecord.create(path, kind="train", config={}, hardware={})

    corpus = Corpus()
    result = Loop(group, config, corpus, trainer, Path(folder)).run(opened, {})
    return {**result, "read": corpus.read, "calls": len(calls)}


def events(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_one_rank_s_nan_is_skipped_lowered_and_rolled_back_by_all(tmp_path):
    both = run_ranks(trained, str(tmp_path / "run"), [5, 6, 7], size=2, backend="threads", timeout=120.0)
    assert both[0]["losses"] == both[1]["losses"] and both[0]["steps"] == 10
    said = [(e["kind"], e.get("action")) for e in events(tmp_path / "run") if e["kind"] in ("nonfinite", "rolled back")]
    assert said == [("nonfinite", "skip"), ("nonfinite", "lower"), ("nonfinite", "roll back"), ("rolled back", None)]
    # Steps 5 to 7 were bad: back to step 4, and step k reads batch k + 3 from then on.
    assert both[0]["read"] == [1, 2, 3, 4, 5, 6, 7, *range(8, 14)]
    lines = [json.loads(line) for line in (tmp_path / "run" / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 11)) and not any(line["skipped"] for line in lines)
    lower = [e["rate"] for e in events(tmp_path / "run") if e["kind"] == "nonfinite"]
    assert lower == [1.0, 0.5, 0.25] and lines[4]["lr"] < 0.26 * lines[3]["lr"]


def test_it_goes_on_from_the_newest_whole_checkpoint_and_says_which_was_not(tmp_path):
    whole = run_ranks(trained, str(tmp_path / "whole"), [], size=2, backend="threads", timeout=120.0)[0]
    run_ranks(trained, str(tmp_path / "run"), [], size=2, backend="threads", timeout=120.0)
    newest = tmp_path / "run" / "checkpoints" / "step-00000010" / "rank-00001"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(bytes(data))
    again = run_ranks(trained, str(tmp_path / "run"), [], size=2, backend="threads", timeout=120.0)[0]
    assert again["calls"] == 2 and again["losses"] == whole["losses"], "from step 8, bit for bit"
    said = {e["kind"]: e["message"] for e in events(tmp_path / "run")}
    assert newest.name in said["corrupt_checkpoint"] and "step 8" in said["loaded"]


# ---- where a rank stands


def test_whoever_stands_in_a_broadcast_waits_for_its_group_and_not_for_the_source():
    """A hung receiver would otherwise have its waiting neighbours blame the source, which has sent long ago."""
    ledgers, seen = {}, {}

    def job(group):
        ledgers[group.rank] = group.ledger
        if group.rank == 0:
            while not (1 in ledgers and (found := standing(ledgers[1], 1)).call):
                time.sleep(0.01)
            seen[1] = found
        group.broadcast(torch.ones(2), src=0)

    run_ranks(job, size=2, backend="threads", timeout=60)
    assert (seen[1].call, seen[1].peer, seen[1].ranks) == ("broadcast", None, (0, 1))


def multiplied(group, products: str) -> tuple[list[float], dict]:
    """The losses of three steps in FP8, and what the linears were, on these ranks."""
    values = dict(model=SHAPE, steps=3, seq_len=16, batch_size=2 * group.size, eval_every=0, checkpoint_every=0)
    config = degrees(CapstoneConfig(**values, mixed_precision="fp8", rest="fp32", products=products), group.size)
    corpus = Corpus()
    corpus.describe = dict
    summary = mine.run(group, config, Path("unused"), lambda about, step: None, corpus)
    return list(summary["losses"].values()), summary["evidence"]["module_types"]


def test_16_10_multiplies_where_it_is_asked_to(monkeypatch):
    """On a CPU both products are there. They differ in the order of a sum, and in where a scale is divided out."""
    calls, product = [], tensor_cores.product
    monkeypatch.setattr(tensor_cores, "product", lambda *a, **k: (calls.append(1), product(*a, **k))[1])
    ways, how = ("emulated", "tensor-cores"), dict(size=2, backend="threads", timeout=120.0)
    (emulated, plain), (codes, kinds) = (run_ranks(multiplied, products, **how)[0] for products in ways)
    assert plain == {"FP8Linear": 14, "Linear": 1} and kinds == {"TensorCoreLinear": 14, "Linear": 1}
    assert codes == pytest.approx(emulated, rel=1e-4)
    assert len(calls) == 3 * 14 * 3 * 2, "three products of each linear, in each step, on each rank"
    for values, words in (({"mixed_precision": "bf16"}, "leave it out"), ({"parallel": {"tp": 2}}, "one rank alone")):
        with pytest.raises(LabError, match=words):
            degrees(CapstoneConfig(**{"mixed_precision": "fp8", "products": "tensor-cores", **values}), 2)
