"""`train_job`: from a config to a record and a summary, with the real corpus, backends and transforms."""

from functools import partial

import pytest

from labkit.comm.ranks import RankPool
from labkit.errors import LabError
from labkit.record.run import read_run
from labkit.train.job import train_job
from tests.train.training_jobs import MODEL, StopAt


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Train on two ranks, on a few Python files, so that the corpus is built in a moment."""
    text = tmp_path_factory.mktemp("text")
    for i in range(40):
        (text / f"m{i}.py").write_text("\n".join(f"def f{i}_{j}(x):\n    return x * {j} + {i}\n" for j in range(30)))
    usual = dict(model={**MODEL, "vocab_size": 320}, data={"source": [str(text)], "heldout_fraction": 0.2})
    usual |= dict(steps=4, seq_len=16, batch_size=4, accumulation=2, lr=1e-2, precision={"backend": "fp32"})
    usual |= dict(eval_every=2, eval_batches=1, checkpoint_every=2)

    def job(run_dir=None, hooks=(), **changes):
        return pool.run(partial(train_job, hooks=hooks), {**usual, **changes}, run_dir, timeout=180.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        with RankPool(2) as pool:
            yield job


def test_summary_and_record(job, tmp_path):
    results = job(tmp_path / "run")
    assert results[0]["heldout"] == results[1]["heldout"] and list(results[0]["heldout"]) == [2, 4]
    summary = results[0]
    assert summary["conversion"]["backend"] == "fp32" and summary["evidence"]["converted"] == 14  # 7 in a block
    assert summary["parameters"] > 0 and summary["corpus"]["hash"]
    record = read_run(tmp_path / "run")
    assert record.status == "finished" and record.run["kind"] == "train" and record.run["config"]["lr"] == 0.01
    assert record.run["conversion"]["converted"] == summary["conversion"]["converted"]
    assert record.run["results"]["heldout"] == {"2": summary["heldout"][2], "4": summary["heldout"][4]}
    assert record.run["results"]["peak_bytes"] == summary["peak_bytes"] and len(summary["peak_bytes"]) == 2
    assert [line["step"] for line in record.steps] == [1, 2, 3, 4]


def test_an_interrupted_run_goes_on(job, tmp_path):
    straight = job()[0]
    job(tmp_path / "run", hooks=(StopAt(2),))
    resumed = job(tmp_path / "run")[0]
    assert resumed["resumed_from"] == 2 and resumed["losses"] == straight["losses"]
    again = job(tmp_path / "run")[0]
    assert again["resumed_from"] == 4 and again["heldout"] == straight["heldout"]


def test_fp8_on_two_ranks_with_scales(job, tmp_path):
    changes = dict(precision={"backend": "torchao"}, probe_every=4, activation_checkpointing="block")
    result = job(tmp_path / "run", **changes)[0]
    assert result["evidence"]["converted"] == 14
    assert any("Float8" in kind for kind in result["evidence"]["module_types"])
    assert result["losses"][4] < result["losses"][1]
    scales = read_run(tmp_path / "run").steps[3]["scales"]
    assert set(scales["layers.0.attn.wq.input"]) == {"scale", "amax", "overflow", "underflow", "sqnr"}


def test_a_perturbed_baseline_differs_by_rounding(job):
    plain, moved = job()[0], job(perturb=2**-9)[0]
    gaps = [abs(moved["losses"][k] - plain["losses"][k]) / plain["losses"][k] for k in plain["losses"]]
    assert 0 < max(gaps) < 0.01  # a relative change of weights by at most 0.2 %


def test_a_folder_with_another_run_is_refused_and_one_that_failed_without_a_step_is_not(job, tmp_path):
    with pytest.raises(LabError, match="batch_size 3 does not divide by 2 ranks"):
        job(tmp_path / "run", batch_size=3, accumulation=1)
    record = read_run(tmp_path / "run")
    assert record.status == "failed" and "batch_size 3" in record.events[-1]["message"]
    job(tmp_path / "run", checkpoint_every=0)
    record = read_run(tmp_path / "run")
    assert record.run["config"]["batch_size"] == 4 and record.status == "finished"
    with pytest.raises(LabError, match="holds another run: it was made with lr = 0.01 and the config.* now says 0.02"):
        job(tmp_path / "run", checkpoint_every=0, lr=0.02)
    assert len(read_run(tmp_path / "run").steps) == 4
