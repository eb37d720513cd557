"""Checkpoints: nothing lost by a resume, a kill, a full disk or a bad one."""

import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from labkit.comm.ranks import RanksFailed, run_ranks
from labkit.errors import LabError
from labkit.record.run import read_run
from labkit.train import manifest
from labkit.train.checkpoint import Checkpoints
from labkit.train.optim import adamw
from tests.train import training_jobs as jobs
from tests.train.training_jobs import Accident, identical, sharded, small_config

# The same additions in another order (see test_loop.py).
SUMMATION = dict(rtol=0, atol=2e-5)


def accident(config, run_dir, before):
    """A run of its own processes, in which something bad happens."""
    return run_ranks(
        partial(jobs.run_sharded, before=before), config, run_dir, size=2, backend="processes", timeout=120.0
    )


def here(config, *args, **how):
    return jobs.here(config, *args, **how)[0]


def saving(every=2, **changes):
    usual = dict(checkpoint_every=every, eval_every=2, eval_batches=1, model=dict(tie_embeddings=True))
    return small_config(**{**usual, **changes})


def folders(run_dir):
    return sorted(p.name for p in (run_dir / "checkpoints").iterdir())


def newest(run_dir):
    return max((run_dir / "checkpoints").glob("step-*"))


@pytest.fixture(scope="module")
def straight(pools):
    """Six steps without a stop, on two ranks under FSDP2."""
    return sharded(pools, 2, saving(3))[0]


# ---- resuming


def test_three_steps_a_resume_and_three_more_are_six_bit_for_bit(pools, straight, tmp_path):
    for result in sharded(pools, 2, saving(3), tmp_path, hooks=(jobs.StopAt(3),)):
        assert result["steps"] == 3 and result["resumed_from"] == 0
    for result in sharded(pools, 2, saving(3), tmp_path):
        assert result["resumed_from"] == 3
        identical(result, straight)
    record = read_run(tmp_path)
    assert [line["step"] for line in record.steps] == [1, 2, 3, 4, 5, 6]
    assert [e["kind"] for e in record.events] == ["stopped", "checkpoint", "loaded", "resume", "checkpoint"]


def test_both_ranks_go_back_when_one_of_them_breaks(pools, straight, tmp_path):
    """With the same batches and the same rate what follows is the straight run, on every rank, bit for bit."""
    config = saving(3, recovery={"rollback_after": 2, "factor": 1.0, "skip_data": False})
    for result in sharded(pools, 2, config, tmp_path, hooks=(jobs.Burst(5, 2, rank=1),)):
        assert result["recovery"]["rollbacks"] == [[6, 3]] and result["skipped"] == []
        identical(result, straight)
    assert folders(tmp_path) == ["step-00000003", "step-00000006"]


@pytest.mark.parametrize("first, then", [(2, 1), (1, 2)])
def test_resuming_on_another_number_of_ranks(pools, straight, tmp_path, first, then):
    sharded(pools, first, saving(3), tmp_path, hooks=(jobs.StopAt(3),))
    result = sharded(pools, then, saving(3), tmp_path)[-1]
    assert result["resumed_from"] == 3
    assert result["losses"] == pytest.approx(straight["losses"], rel=1e-5)
    jobs.same_weights(result["weights"], straight["weights"], **SUMMATION)
    assert any(f"saved on {first} ranks and now on {then}" in e["message"] for e in read_run(tmp_path).events)


def test_generators_and_hooks_go_on(pools, tmp_path):
    whole = sharded(pools, 2, saving(3), tmp_path / "a", hooks=(jobs.Dice(),))
    sharded(pools, 2, saving(3), tmp_path / "b", hooks=(jobs.Dice(), jobs.StopAt(3)))
    resumed = sharded(pools, 2, saving(3), tmp_path / "b", hooks=(jobs.Dice(),))
    for rank in (0, 1):
        assert resumed[rank]["hooks"][0].drawn == whole[rank]["hooks"][0].drawn  # the earlier ones from its state
        assert len(resumed[rank]["hooks"][0].drawn) == 6
    assert whole[0]["hooks"][0].drawn != whole[1]["hooks"][0].drawn


def test_the_backend_s_state_goes_on_whatever_hooks_there_are(tmp_path):
    """Scales that are frozen after the first step: found anew after the resume, they would give other losses."""
    config = saving(3, precision={"backend": "broken-stale"})
    (straight,) = jobs.here(config, job=jobs.run_converted)
    jobs.here(config, tmp_path, (jobs.StopAt(3), jobs.Dice()), job=jobs.run_converted)
    (resumed,) = jobs.here(config, tmp_path, job=jobs.run_converted)
    assert resumed["resumed_from"] == 3 and resumed["losses"] == straight["losses"]
    (event,) = [e for e in read_run(tmp_path).events if e["kind"] == "state_dropped"]
    assert "has state of hook Dice 0" in event["message"]


def test_a_run_that_was_killed_between_checkpoints_repeats_its_steps(tmp_path):
    reference = here(saving(2))
    here(saving(2), tmp_path, hooks=(jobs.StopAt(3),))
    # As if killed after step 3, before its checkpoint; and before the first one.
    for begin, lost in ((2, newest(tmp_path)), (0, tmp_path / "checkpoints")):
        shutil.rmtree(lost)
        result = here(saving(2), tmp_path)
        assert result["resumed_from"] == begin
        identical(result, reference)
        assert [line["step"] for line in read_run(tmp_path).steps] == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_before_the_first_update(tmp_path):
    # All steps so far were refused: AdamW has no state, and a resume must not give it one.
    spoil = jobs.Spoil({1, 2}, rank=0)
    reference = here(saving(2), hooks=(spoil,))
    here(saving(2), tmp_path, hooks=(spoil, jobs.StopAt(2)))
    resumed = here(saving(2), tmp_path, hooks=(spoil,))
    assert resumed["skipped"] == [1, 2] and resumed["resumed_from"] == 2
    assert resumed["losses"][6] == reference["losses"][6]
    jobs.same_weights(resumed["weights"], reference["weights"])


def test_only_so_many_are_kept(tmp_path):
    here(saving(1, keep_checkpoints=2), tmp_path)
    assert folders(tmp_path) == ["step-00000005", "step-00000006"]


def test_none_at_the_end_if_the_config_says_so(tmp_path):
    config = saving(4, checkpoint_at_end=False)
    here(config, tmp_path, hooks=(jobs.StopAt(2),))
    assert folders(tmp_path) == ["step-00000002"], "a pause writes one"
    assert here(config, tmp_path)["resumed_from"] == 2
    assert folders(tmp_path) == ["step-00000002", "step-00000004"]


def test_starting_anew_in_a_used_folder_is_refused(tmp_path):
    here(saving(), tmp_path)
    with pytest.raises(LabError, match="holds checkpoints of an earlier run .up to step 6.: resume it, or"):
        here(saving(), tmp_path, resume=False)


# ---- another configuration


@pytest.mark.parametrize(
    "change, names",
    [
        (dict(model=dict(d_model=64, tie_embeddings=True)), "model.d_model = 32 and the configuration now says 64"),
        (dict(precision={"backend": "fp32"}), "precision.backend = 'bf16' and the configuration now says 'fp32'"),
    ],
)
def test_another_configuration_is_named(tmp_path, change, names):
    here(saving(), tmp_path)
    with pytest.raises(LabError, match=re.escape(names)):
        here(saving(**change), tmp_path)


def test_what_does_not_change_the_numbers_may_change(tmp_path):
    here(saving(), tmp_path, hooks=(jobs.StopAt(2),))
    changed = saving(3, accumulation=2, reduce_once=True, reshard_after_forward=False, keep_checkpoints=5)
    changed = changed.replace(eval_every=1, eval_batches=3)
    assert here(changed, tmp_path)["resumed_from"] == 2


class OtherText(jobs.CountingCorpus):
    hash = "another"


def test_another_corpus_is_refused(tmp_path):
    here(saving(), tmp_path)
    with pytest.raises(LabError, match="training text is not the one"):
        here(saving(), tmp_path, corpus=OtherText())


def test_another_model_under_the_same_configuration_is_refused(tmp_path):
    def job(group, how):
        config = small_config(**how)
        model = jobs.plain_model(config)
        store, optimizer = Checkpoints(tmp_path, group), adamw(model, config)
        return store.load(model, optimizer) or store.save(1, model, optimizer, {})

    jobs.here({}, job=job)
    message = r"its weight layers.0.ffn.w1.weight is \[48, 32\] and the model's is \[64, 32\]"
    with pytest.raises(LabError, match=message):
        jobs.here(dict(model=dict(d_ffn=64)), job=job)


# ---- damage


def flipped(content):
    return content[: len(content) // 2] + bytes([content[len(content) // 2] ^ 1]) + content[len(content) // 2 + 1 :]


HARM = {  # the file, what becomes of its content (None: it is lost), and what is said of it
    "truncated": ("__1_0.distcp", lambda content: content[:-100], "__1_0.distcp has"),
    "a bit flipped": ("__0_0.distcp", flipped, "__0_0.distcp has changed since it was written"),
    "a file lost": ("rank-00001.pt", None, "rank-00001.pt is missing"),
    "no manifest": ("manifest.json", None, "manifest.json is missing"),
    "another manifest": ("manifest.json", lambda c: c.replace(b'"step": 6', b'"step": 7'), "its own checksum"),
    "half a manifest": ("manifest.json", lambda content: content[:200], "manifest.json cannot be read"),
    "no manifest at all": ("manifest.json", lambda content: b"[1]", "manifest.json cannot be read"),
}


def harm(folder, how):
    name, change, said = HARM[how]
    if change:
        (folder / name).write_bytes(change((folder / name).read_bytes()))
    else:
        (folder / name).unlink()
    return said


@pytest.fixture(scope="module")
def saved(pools, tmp_path_factory):
    """A finished run on two ranks with checkpoints of steps 3 and 6."""
    run_dir = tmp_path_factory.mktemp("saved")
    sharded(pools, 2, saving(3), run_dir)
    assert folders(run_dir) == ["step-00000003", "step-00000006"]
    return run_dir


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "copy"))


@pytest.mark.parametrize("how", HARM)
def test_a_damaged_newest_checkpoint_is_passed_over_and_said(pools, straight, copy, how):
    says = harm(newest(copy), how)
    for result in sharded(pools, 2, saving(3), copy):
        assert result["resumed_from"] == 3
        identical(result, straight)
    (event,) = [e for e in read_run(copy).events if e["kind"] == "corrupt_checkpoint"]
    assert event["step"] == 6 and says in event["message"]
    assert folders(copy) == ["step-00000003", "step-00000006"]  # written anew, and the damaged one cleared away


def test_a_damaged_checkpoint_is_not_one_of_those_kept(pools, copy):
    harm(newest(copy), "truncated")
    config = saving(4, keep_checkpoints=2)  # the next one is of an earlier step: 4
    for result in sharded(pools, 2, config, copy, hooks=(jobs.StopAt(4),)):
        assert result["resumed_from"] == 3
    assert folders(copy) == ["step-00000003", "step-00000004"]


def test_when_all_are_damaged_it_says_so_and_keeps_them(pools, copy):
    harm(copy / "checkpoints" / "step-00000006", "truncated")
    harm(copy / "checkpoints" / "step-00000003", "a bit flipped")
    for _ in range(2):  # and does not start from the beginning later
        with pytest.raises(
            LabError, match="step-00000006: __1_0.distcp has .*; step-00000003: __0_0.distcp has changed"
        ):
            sharded(pools, 2, saving(3), copy)
    assert folders(copy) == ["step-00000003", "step-00000006"]


# ---- killed while saving


@pytest.mark.thorough
def test_killed_while_saving(pools, straight, tmp_path):
    with pytest.raises(RanksFailed):
        accident(saving(3), tmp_path, Accident("killed_before_publishing", step=6, rank=0))
    assert folders(tmp_path) == ["step-00000003", "step-00000006.partial"]
    for result in sharded(pools, 2, saving(3), tmp_path):
        assert result["resumed_from"] == 3
        identical(result, straight)
    assert folders(tmp_path) == ["step-00000003", "step-00000006"]


def test_killed_while_deleting_an_old_one(pools, straight, tmp_path):
    with pytest.raises(RanksFailed):
        accident(saving(3, keep_checkpoints=1), tmp_path, Accident("killed_while_deleting_old_ones", step=6, rank=0))
    assert folders(tmp_path) == ["step-00000003.old.partial", "step-00000006"]
    result = sharded(pools, 2, saving(3, keep_checkpoints=1), tmp_path)[0]
    assert result["resumed_from"] == 6
    identical(result, straight)
    assert folders(tmp_path) == ["step-00000006"]


# ---- a full disk

FULL = (
    "the disk is full: the checkpoint of step 6 could not be written to .*needed, .*free.; the checkpoint of step "
    "3 is intact. Free some space and run the same command again.$"
)


@pytest.mark.thorough
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", ["full_while_dcp_writes", "full_while_rank_writes"])
def test_a_disk_that_fills_up_while_saving(pools, straight, tmp_path, how, rank):
    with pytest.raises(RanksFailed) as caught:
        accident(saving(3), tmp_path, Accident(how, step=6, rank=rank))
    assert re.search(FULL, str(caught.value)), caught.value
    assert folders(tmp_path) == ["step-00000003"]  # intact, and the space given back
    result = sharded(pools, 2, saving(3), tmp_path)[0]
    assert result["resumed_from"] == 3
    identical(result, straight)


def test_too_little_space_is_said_before_the_disk_is_filled(tmp_path):
    with pytest.raises(RanksFailed) as caught:
        accident(saving(3), tmp_path, Accident("little_space", step=3))
    assert re.search(
        "the disk is full: the checkpoint of step 3 .*0.[0-9] MB needed, 0.0 MB free.; there is no", str(caught.value)
    )
    assert folders(tmp_path) == []


# ---- the folder and its manifest, without ranks


def test_only_whole_folders_count(tmp_path):
    for name in ("step-00000003", "step-00000012", "step-00000020.partial", "step-00000030.corrupt"):
        (tmp_path / name).mkdir()
    for name in ("notes", "step-x", "a.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000040").write_text("a file")
    assert manifest.whole_steps(tmp_path) == [12, 3]
    assert manifest.whole_steps(tmp_path / "missing") == []
    manifest.sweep(tmp_path, manifest.PARTIAL)
    kept = {"notes", "step-00000003", "step-00000012", "step-00000030.corrupt", "step-00000040", "step-x", "a.partial"}
    assert {p.name for p in tmp_path.iterdir()} == kept
