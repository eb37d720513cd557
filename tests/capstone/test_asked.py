"""A SIGTERM at a chosen line of a run: whichever it is, run.json says how the run ended."""

import json
import signal
from pathlib import Path

import pytest

from capstone import train
from labkit.comm.ranks import run_ranks
from labkit.record.run import RunRecord

SHAPE = dict(vocab_size=300, d_model=64, n_layers=1, n_heads=2, n_kv_heads=2, d_ffn=64, max_seq_len=16)


def job(group, values: dict, out: str, line: str) -> dict:
    """A training that gets a SIGTERM behind the first call of this method of its record."""
    method, came = getattr(RunRecord, line), []

    def then(self, *args, **fields):
        method(self, *args, **fields)
        if not came:
            came.append(1)
            signal.raise_signal(signal.SIGTERM)

    setattr(RunRecord, line, then)
    return train.job(group, values, out)


@pytest.mark.parametrize("parts", ["mine", "torch"])
@pytest.mark.parametrize(
    "line, status, steps", [("_write_run", "paused", 1), ("step", "paused", 2), ("results", "finished", 3)]
)
def test_run_json_says_how_it_ended(tmp_path: Path, parts: str, line: str, status: str, steps: int):
    (tmp_path / "text").mkdir()
    for name in "abcd":
        (tmp_path / "text" / f"{name}.py").write_text("".join(f"{name}_{k} = {k} * {k + 1}\n" for k in range(2000)))
    values = dict(model=SHAPE, steps=3, seq_len=16, batch_size=2, eval_every=0, checkpoint_every=50, parts=parts)
    values |= dict(mixed_precision="fp32", rest="fp32", data={"source": [str(tmp_path / "text")]})
    out = tmp_path / "run"
    summary = run_ranks(job, values, str(out), line, size=1, backend="processes", timeout=None)[0]
    record = json.loads((out / "run.json").read_text())
    assert (record["status"], summary["paused"], summary["steps"]) == (status, status == "paused", steps)
    assert (out / "checkpoints" / f"step-{steps:08d}").is_dir()
