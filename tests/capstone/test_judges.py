"""What the capstone's judges make of a bad hand-in: a bomb, a record that cannot be read, a file nobody published."""

import io
import zipfile
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from capstone import test_assemble, test_checkpoint, test_survive
from capstone.drawn import Drawn
from capstone.given import struck
from labkit.checks.verdict import CheckFailed
from labkit.comm.ledger import Ledger


def test_a_checkpoint_that_unpacks_to_more_than_it_is():
    plain, packed = io.BytesIO(), io.BytesIO()
    torch.save({"shards": [torch.zeros(1 << 20)]}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bomb:
        for one in source.infolist():
            bomb.writestr(one.filename, source.read(one.filename))
    assert len(packed.getvalue()) < len(plain.getvalue()) / 100
    assert len(struck._tensors(plain.getvalue())["shards"][0]) == 1 << 20
    assert len(torch.load(io.BytesIO(packed.getvalue()), weights_only=True)["shards"][0]) == 1 << 20  # torch unpacks it
    with pytest.raises(ValueError, match="larger than the file"):
        struck._tensors(packed.getvalue())


def test_a_run_that_cannot_be_read_is_not_run_again_for_each_fault(monkeypatch):
    """A record whose step is a word: the check raises. Torchrun is started once all the same."""
    runs = []

    def tell(place, seed, story):
        runs.append(seed)
        int("no step")

    @contextmanager
    def site():
        yield type("Place", (), {"said": lambda self: ""})()

    monkeypatch.setattr(test_survive, "here", lambda: ("a runner", SimpleNamespace()))
    monkeypatch.setattr(test_survive, "call_alone", lambda name: True)
    monkeypatch.setattr(test_survive, "site", site)
    monkeypatch.setattr(test_survive, "_stories", {})
    for fault in ("skipped", "full disk", "slow"):
        with pytest.raises(ValueError, match="no step"):
            test_survive.story_of("goes on", tell, 7).of(fault)
    assert runs == [7]


def test_a_checkpoint_that_nobody_published_is_wrong_and_no_fault():
    with pytest.raises(CheckFailed, match="publish"):
        test_checkpoint.disk([{"heard": []}] * 4, [Ledger(rank, 4) for rank in range(4)])


class Unstruck:
    """A place whose ranks nobody can find, while everything looks as it should."""

    def __init__(self, folder):
        self.given = self.left = folder
        self.running = False

    def __getattr__(self, name):
        known = {"fill": False, "processes": [], "state": "", "said": "", "wait": 0, "read": b""}
        return lambda *_, **__: known.get(name)


@pytest.mark.parametrize("name, faults", [("struck", ["killed", "hung", "preempted"]), ("goes_on", ["full disk"])])
def test_what_could_not_be_struck_has_survived_nothing(name, faults, tmp_path, monkeypatch):
    """A rank that hides its number, forges lines, and lays a link where the judge would lay a file."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "step-00000010.partial").symlink_to(mine)
    right = dict(reached=True, curve="", weights="", hang="", resumed=[6], steps={30: 1.0}, published=[30], until=True)
    for what, answer in {**right, "events": [], "late": True, "gate": None}.items():
        monkeypatch.setattr(test_survive, what, lambda *_, answer=answer, **__: answer)
    monkeypatch.setattr(test_survive.time, "sleep", lambda seconds: None)
    story = test_survive.Story()
    getattr(test_survive, f"{name}_run")(Unstruck(tmp_path), 7, story)
    assert [story.wrong[fault] for fault in faults] == [test_survive.UNKNOWN] * len(faults)
    assert mine.read_text() == "mine"
    if name == "struck":  # its last start must load step 30, and finds no batch up to it
        assert not torch.load(tmp_path / "batches.pt", weights_only=True).any()


def test_a_restart_reads_no_batch_that_a_checkpoint_has(tmp_path):
    """So who trains all anew, and says what loading says, becomes another run."""
    job, place = struck.Job(7, "struck", steps=30, bad=set(), batches=30), Unstruck(tmp_path)
    job.lay(place)
    assert torch.equal(Drawn(tmp_path, 0).batches, job.batches)
    job.forget(place, 5)
    read = Drawn(tmp_path, 0)
    assert not read.batch(5, 8, 9, 0).any() and torch.equal(read.batches[5:], job.batches[5:])


def test_an_error_of_bf16s_size_has_to_have_its_direction(monkeypatch):
    """Noise of 1.9 % on float32's gradients was taken for BF16."""
    seed, mesh = 5, {"dp": 4}
    c, weights, batches, options = test_assemble.drawn(seed, "dp4", "bf16")
    how = {"dtype": torch.bfloat16}
    plain, low = (test_assemble.alone(c, weights, batches[:1], options, **one)["gradients"] for one in ({}, how))
    generator = torch.Generator().manual_seed(1)

    def judged(gradients):
        test_assemble.in_the_band([{"gradients": gradients}] * 4, c, mesh, weights, batches, options, **how)

    judged(low)
    size = (sum((low[k] - plain[k]).square().sum() for k in plain) / sum(t.numel() for t in plain.values())).sqrt()
    noisy = {name: t + size * torch.randn(t.shape, generator=generator) for name, t in plain.items()}
    with pytest.raises(CheckFailed, match="another direction"):
        judged(noisy)
