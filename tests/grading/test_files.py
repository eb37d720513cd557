"""Files are put in place whole, and one process at a time writes into a folder."""

import os
import stat

import pytest

from grading.files import locked, put
from labkit.errors import LabError


def test_a_file_is_the_old_one_or_the_new_one(tmp_path):
    place = tmp_path / "mark.json"
    put(place, b"old")

    def half(file):
        file.write(b"new, but")
        assert place.read_bytes() == b"old"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        put(place, half)
    assert place.read_bytes() == b"old" and os.listdir(tmp_path) == ["mark.json"]
    put(place, lambda file: file.write(b"new"))
    assert place.read_bytes() == b"new"


def test_what_a_killed_writer_left_is_replaced_and_no_link_is_followed(tmp_path):
    (tmp_path / "victim").write_text("as it was")
    (tmp_path / ".mark.json.part").symlink_to(tmp_path / "victim")
    put(tmp_path / "mark.json", b"mine", 0o600)
    assert (tmp_path / "victim").read_text() == "as it was" and (tmp_path / "mark.json").read_bytes() == b"mine"
    assert stat.S_IMODE((tmp_path / "mark.json").stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["mark.json", "victim"]


@pytest.mark.parametrize("place", ["", ".lock"])
def test_one_at_a_time(tmp_path, place):
    again = locked(tmp_path / place, "busy")
    with locked(tmp_path / place, "busy"), pytest.raises(LabError, match="busy"):
        again.__enter__()
    with locked(tmp_path / place, "busy"):
        pass
