"""Variables of a launcher and of a site's profile that are left over, or name what is not there."""

import re
import sys
from datetime import timedelta

import pytest
import torch.distributed as dist

from capstone import train
from labkit.comm import ranks, torchrun
from labkit.comm.ranks import LAUNCHED, LOCAL, is_first, local_rank, of_this_machine, under_torchrun
from labkit.comm.transport import join, strange_interface
from labkit.doctor import frameworks
from labkit.errors import LabError
from week13_allreduce import bench as bench13
from week14_fsdp import bench as bench14
from week15_tp_attention import bench as bench15


@pytest.fixture
def launched(monkeypatch):
    """Sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, in this order; None: not set."""

    def put(*values):
        for name, value in zip(LAUNCHED, values):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    "values, known, first",
    [
        # A job that is over leaves RANK=1: who then runs alone prints all the same.
        (("1", None, None, None), False, True),
        (("1", "8", None, None), False, True),
        ((None, "8", None, None), False, True),
        (("1", "8", "node-0", None), False, True),
        (("1", "8", "node-0", "29500"), True, False),
        (("0", "8", "node-0", "29500"), True, True),
    ],
)
def test_all_of_a_launchers_variables_make_a_rank(launched, monkeypatch, values, known, first):
    launched(*values)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (under_torchrun(), is_first(), of_this_machine(8)) == (known, first, 4 if known else 8)


def test_a_commands_ranks_are_the_launchers(launched, monkeypatch, tmp_path):
    """A pod of one process has WORLD_SIZE=1: two ranks that somebody asks for are not there."""
    launched("0", None, "pod", "29500")
    assert ranks.launched(2) is None is ranks.launched()
    launched("0", "1", "pod", "29500")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert ranks.launched() == 1 == ranks.launched(1)
    with pytest.raises(LabError, match="^--ranks 2 .* WORLD_SIZE=1: .* unset RANK, .*, MASTER_PORT, LOCAL_RANK$"):
        ranks.launched(2)
    config = tmp_path / "config.toml"
    config.write_text("steps = 1\n")
    for command, *words in ((bench13.main,), (bench14.main,), (bench15.main,), (train.main, str(config))):
        with pytest.raises(LabError, match="^--ranks 2 .* WORLD_SIZE=1"):
            command([*words, "--ranks", "2", "--out", str(tmp_path / "out")])


NO_NUMBER = ["", " ", "x", "-1", "1 ", "1.0", "2(x2)", "tcp://10.3.0.1:29500", "auto"]


@pytest.mark.parametrize(
    "name, value",
    [
        *[(name, value) for name in (*LAUNCHED, *LOCAL) if name != "MASTER_ADDR" for value in NO_NUMBER],
        *[("MASTER_PORT", str(port)) for port in (0, 2**16, 123456)],  # made of a job's number, it may be too large
        *[("MASTER_ADDR", address) for address in ("", " ", " 10.0.5.4", "[::1]", "a b")],
        ("RANK", "2"),
        ("LOCAL_WORLD_SIZE", "0"),
    ],
)
def test_variables_that_name_no_rank_are_one_sentence(launched, monkeypatch, name, value):
    """Kubernetes sets MASTER_PORT=tcp://... beside a service that is called master."""
    launched("0", "2", "fe80::1", "65535")
    for own in LOCAL:
        monkeypatch.setenv(own, "1")
    assert under_torchrun() and local_rank() == 1
    monkeypatch.setenv(name, value)
    for ask in (under_torchrun, is_first, local_rank, lambda: of_this_machine(2)):
        with pytest.raises(LabError, match=f"^.*{re.escape(f'{name}={value!r}')}.*unset {', '.join(LAUNCHED)}.*$"):
            ask()


def refused(attempt, serves):
    raise dist.DistNetworkError("The client socket has failed to connect\nand more")


@pytest.mark.parametrize(
    "connect, words",
    [
        (lambda attempt, serves: dist.HashStore(), "for rank 1, 2 at node-0:29500, since RANK.*not all ranks came"),
        (refused, "for an answer at node-0:29500.*gave up: The client socket has failed to connect$"),
    ],
)
def test_who_waits_says_for_whom_where_and_why(launched, connect, words, monkeypatch, capsys):
    class Now:  # what is said after some seconds is said at the start
        def __init__(self, seconds, says):
            self.start, self.cancel = says, lambda: None

    launched("0", "3", "node-0", "29500")
    monkeypatch.setattr(torchrun.threading, "Timer", Now)
    monkeypatch.setattr(torchrun, "PATIENCE", timedelta(seconds=0.3))
    monkeypatch.setattr(torchrun.Attempt, "_connect", connect)
    with pytest.raises(LabError, match=f"^rank 0 of 3 .*{words}.*$"):
        torchrun.Attempt()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "for an answer at node-0:29500, since RANK, WORLD_SIZE" in said


@pytest.mark.parametrize(
    "names, strange", [("hsn0", True), ("lo,hsn0", True), ("lo", False), ("", False), (None, False)]
)
def test_an_interface_that_is_not_there_is_named(names, strange, monkeypatch):
    monkeypatch.setattr("socket.if_nameindex", lambda: [(1, "lo"), (2, "eth0")])
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if names is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", names)
    said = strange_interface()
    assert said == (f"; GLOO_SOCKET_IFNAME={names} is set, and the interfaces of this machine are lo, eth0" * strange)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere gloo takes another transport")
def test_ranks_of_several_machines_say_which_interface_is_missing(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "hsn0")
    with pytest.raises(LabError, match="^.*could not join the others: .*hsn0.*GLOO_SOCKET_IFNAME=hsn0.*$") as said:
        join("cpu", 0, store=dist.HashStore(), rank=0, world_size=1)
    assert "enforce" not in str(said.value) and not dist.is_initialized()


def test_the_doctor_says_it_too(monkeypatch):
    """One machine works all the same, by its loopback."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "hsn0")
    (check,) = frameworks.gloo()
    assert check.ok and check.detail.endswith(strange_interface() or "?")
