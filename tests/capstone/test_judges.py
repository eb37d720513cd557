"""What the capstone's judges make of a bad hand-in: a bomb, a record that cannot be read, a file nobody published."""

import io
import zipfile
from contextlib import contextmanager

import pytest
import torch

from capstone import test_checkpoint, test_survive
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

    monkeypatch.setattr(test_survive, "here", lambda: ("a runner", None))
    monkeypatch.setattr(test_survive, "call_alone", lambda name: True)
    monkeypatch.setattr(test_survive, "site", site)
    monkeypatch.setattr(test_survive, "_stories", {})
    for fault in ("skipped", "full disk", "slow"):
        with pytest.raises(ValueError, match="no step"):
            test_survive.story_of("goes on", tell, 7).of(fault)
    assert runs == [7]


def test_a_checkpoint_that_nobody_published_is_wrong_and_no_fault():
    with pytest.raises(CheckFailed, match="publish"):
        test_checkpoint.published_last([Ledger(rank, 4) for rank in range(4)])
