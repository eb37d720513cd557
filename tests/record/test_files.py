"""Replacing a file: whole or not at all, and a failure in one sentence."""

import errno
from pathlib import Path

import pytest

from labkit.errors import LabError
from labkit.record.files import explained, replace_file


@pytest.mark.parametrize("content", ["w\u00f6rter", b"\0bytes"])
def test_the_new_content_is_there_and_nothing_beside_it(tmp_path, content):
    file = tmp_path / "a.json"
    file.write_text("old")
    replace_file(file, content)
    assert file.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("where", ["os.fsync", "os.replace"])
def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch, where):
    file = tmp_path / "a.json"
    file.write_text("old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(where, fail)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, "new")
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_a_failure_is_one_sentence():
    full, denied = OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EACCES, "Permission denied")
    for error, given, said in (
        (denied, {}, "could not write a.json: Permission denied"),
        (denied, {"stop": ".", "full": "free some"}, "could not write a.json: Permission denied."),
        (full, {}, "could not write a.json: No space left on device"),
        (full, {"full": "free some."}, "the disk is full: could not write a.json; free some."),
    ):
        with pytest.raises(LabError) as shown, explained(Path("a.json"), **given):
            raise error
        assert str(shown.value) == said
