"""What `lab watch` refuses, each in one sentence and before anything is served."""

import socket

import pytest

from labkit.errors import LabError
from labkit.watch import watch
from labkit.watch.serve import serve
from tests.compare.comparing import lab_here, one_sentence
from tests.watch.lines import lines, write


def test_no_run_there(tmp_path):
    one_sentence(lab_here(tmp_path, "watch", "nothing"), "there is no run in nothing")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "run.json").write_text("[1]")
    one_sentence(lab_here(tmp_path, "watch", "odd"), "is not a run record")
    with pytest.raises(LabError, match="there is no run in"):
        watch(tmp_path / "nothing")


def test_a_comparison_without_a_training(tmp_path):
    write(tmp_path / "c", [], kind="compare")
    one_sentence(lab_here(tmp_path, "watch", "c"), "has trained nothing yet")


def test_a_port_that_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr("labkit.watch.serve.import_panel", lambda: pytest.fail("the port is asked first"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LabError, match=f"cannot listen at 127.0.0.1:{port}: .*--port 0"):
            serve(write(tmp_path / "r", lines(3)), port, "127.0.0.1", False, print)
