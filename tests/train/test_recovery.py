"""What follows steps that are not finite: skipped, a lower rate, a way back to a checkpoint; alike on all ranks."""

from functools import partial

import pytest

from labkit.errors import LabError
from labkit.record.run import read_run
from labkit.train.optim import learning_rate
from labkit.train.recovery import LOWER, ROLL_BACK, SKIP, Recovery, RecoveryConfig, row_of
from tests.train import training_jobs as jobs
from tests.train.training_jobs import here, identical, small_config
from week16_fp8.loss_scaling import Recovery as Taught


def short(**recovery):
    return small_config(steps=8, eval_every=8, eval_batches=1, checkpoint_every=2, recovery=recovery)


@pytest.fixture(scope="module")
def clean():
    return here(short())[0]


def test_the_ladder_is_the_one_that_is_taught():
    """The same rows of bad steps, for this one and for task 16.7's: actions and rates."""
    ours = Recovery(RecoveryConfig(lower_after=2, rollback_after=4, factor=0.25))
    taught = Taught(lower_after=2, rollback_after=4, factor=0.25)
    step = 0
    for length in (1, 3, 4, 2):
        for row in range(1, length + 1):
            step += 1
            assert ours.answer(row) == taught.after(step, float("nan"), False) and ours.rate == taught.rate
        step += 1
        assert taught.after(step, 1.0, True) == "step"
    assert [Recovery(RecoveryConfig()).answer(row) for row in (1, 10)] == [SKIP, SKIP]
    assert Recovery(RecoveryConfig(rollback_after=1)).answer(1) == ROLL_BACK
    assert Recovery(RecoveryConfig(lower_after=3)).answer(7) == LOWER


def test_counting_a_row():
    assert [row_of(skipped, 9) for skipped in ([], [8], [9], [3, 8, 9], [7, 8, 9], [9, 10])] == [0, 0, 1, 2, 3, 0]


def test_after_going_back_the_run_is_the_clean_one_to_the_last_bit(clean, tmp_path):
    """With the same batches and the same rate nothing is left of what went wrong: in memory, in the record, on disk."""
    config = short(rollback_after=2, factor=1.0, skip_data=False)
    result = here(config, tmp_path, hooks=(jobs.Burst(5, 2), jobs.Dice()))[0]
    identical(result, clean)
    assert result["skipped"] == [] and result["steps"] == 8 and result["resumed_from"] == 0
    assert result["recovery"] == {"rate": 1.0, "shift": 0, "rollbacks": [[6, 4]]}
    assert len(result["hooks"][1].drawn) == 8  # hooks went back as well
    record = read_run(tmp_path)
    assert [line["step"] for line in record.steps] == list(range(1, 9))
    events = [(e["kind"], e["step"], e.get("action"), e.get("to")) for e in record.events if e["kind"] != "checkpoint"]
    assert events[0] == ("nonfinite", 5, SKIP, None) and events[1] == ("nonfinite", 6, ROLL_BACK, None)
    assert ("rolled back", 6, None, 4) in events
    assert all(e["reason"] for e in record.events if e["kind"] in ("nonfinite", "rolled back"))
    kept = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-00000006", "step-00000008"]


class Rates(jobs.Hook):
    def __init__(self):
        self.seen = []

    def before_step(self, loop):
        self.seen.append((loop.step, loop.lr))


def test_other_batches_and_a_lower_rate_after_going_back(tmp_path):
    corpus, rates = jobs.Batches(), Rates()
    config = short(lower_after=1, rollback_after=2)
    result = here(config, tmp_path, corpus=corpus, hooks=(jobs.Burst(5, 2), rates))[0]
    steps = [step for split, step, _ in corpus.drawn if split == "train"]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]  # step 5 anew reads batch 7
    factor = [1.0] * 5 + [0.5] + [0.25] * 4
    assert rates.seen == [(s, learning_rate(config, s) * f) for s, f in zip([*range(1, 7), *range(5, 9)], factor)]
    assert result["recovery"] == {"rate": 0.25, "shift": 2, "rollbacks": [[6, 4]]}
    # A resume goes on with what was lowered and skipped.
    more = config.replace(steps=8)
    assert here(more, tmp_path)[0]["recovery"] == result["recovery"]


def test_without_a_checkpoint_from_before_it_says_so_and_goes_on(tmp_path):
    result = here(short(rollback_after=1), tmp_path, hooks=(jobs.Burst(1, 1),))[0]
    assert result["skipped"] == [1] and result["steps"] == 8 and result["recovery"]["rollbacks"] == []
    assert [e["kind"] for e in read_run(tmp_path).events].count("not rolled back") == 1


class Look(jobs.Hook):
    """What lies on the disk at the end of each load."""

    def __init__(self, run_dir):
        self.folder, self.seen = run_dir / "checkpoints", []

    def state_dict(self):
        return {"any": 1}

    def load_state_dict(self, state):
        self.seen.append(sorted(p.name[-1] for p in self.folder.iterdir()))


def test_it_gives_up_after_going_back_in_vain(tmp_path):
    config = short(rollback_after=2, max_rollbacks=2)
    result = here(config, tmp_path, hooks=(jobs.Burst(5, 100), Look(tmp_path)))[0]
    assert result["steps"] == 6 and [to for _, to in result["recovery"]["rollbacks"]] == [4, 4]
    assert result["stopped"].startswith("2 steps in a row were not finite, after going back to a checkpoint 2 times")
    # With more patience, which may change, and without the fault, the same folder goes on: from before the bad steps.
    config = config.replace(recovery={"rollback_after": 2, "max_rollbacks": 9})
    again = here(config, tmp_path, hooks=(jobs.Burst(7, 1), Look(tmp_path)))[0]
    assert again["hooks"][1].seen == [["4", "6"], ["4"]], "what was given up is not there to be resumed"
    assert again["resumed_from"] == 6 and again["steps"] == 8
    assert again["recovery"]["rollbacks"][-1] == [7, 4], "the third bad step in a row, over the pause"
    assert again["skipped"] == []


def test_a_checkpoint_from_the_midst_of_bad_steps_is_not_written(tmp_path):
    here(short(rollback_after=4), tmp_path / "a", hooks=(jobs.Burst(6, 1), jobs.StopAt(7)))
    here(short(), tmp_path / "b", hooks=(jobs.Burst(6, 1), jobs.StopAt(7)))
    kept = [[p.name[-1] for p in sorted((tmp_path / run / "checkpoints").iterdir())] for run in "ab"]
    assert kept == [["4", "7"], ["6", "7"]]


def test_what_cannot_be_is_one_sentence():
    for wrong, complaint in (
        ({"lower_after": 4, "rollback_after": 4}, r"lower_after \(4\) must be less than rollback_after \(4\)"),
        ({"rollback_after": 20}, r"give_up_after \(20\) must be more than .* rollback_after \(20\)"),
        ({"factor": 0.0}, r"\[recovery\], factor must be more than 0"),
    ):
        with pytest.raises(LabError, match=f"^.*{complaint}.*$"):
            small_config(checkpoint_every=1, recovery=wrong)
    with pytest.raises(LabError, match="checkpoint_every = 0 writes none"):
        small_config(recovery={"rollback_after": 3})
    with pytest.raises(LabError, match="give the run a folder"):
        here(short(rollback_after=2))


# ---- two ranks


LONG = dict(steps=80, batch_size=32, lr=1e-2, eval_every=80, eval_batches=8, checkpoint_every=10)


@pytest.fixture(scope="module")
def faultless(two):
    return two.run(partial(jobs.run, sharded=True, corpus=jobs.Noisy()), small_config(**LONG), timeout=120.0)[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "bad, recovery, actions",
    [(1, {}, [SKIP]), (2, {"lower_after": 2}, [SKIP, LOWER]), (3, {"rollback_after": 3}, [SKIP, SKIP, ROLL_BACK])],
)
def test_a_nan_on_one_of_two_ranks_ends_within_one_per_cent(two, faultless, bad, recovery, actions, tmp_path):
    run = partial(jobs.run, sharded=True, corpus=jobs.Noisy(), hooks=(jobs.Burst(60, bad, rank=1),))
    one, other = two.run(run, small_config(**LONG, recovery=recovery), tmp_path, timeout=120.0)
    identical(one, other)
    assert one["recovery"] == other["recovery"]  # agreed
    assert [e["action"] for e in read_run(tmp_path).events if e["kind"] == "nonfinite"] == actions
    assert one["heldout"][80] == pytest.approx(faultless["heldout"][80], rel=0.01)
