"""What a command says in a folder: for tests of what an instructor types."""

import contextlib
import io

import pytest

from grading.cli import main


def grade(folder, *words, status=0):
    """What a command says; its last line if it fails."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        main([str(word) for word in words])
    assert status is None or (left.value.code or 0) == status, out.getvalue() + err.getvalue()
    return " ".join((out.getvalue() if status != 2 else err.getvalue()).split())
