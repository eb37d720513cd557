"""What a submission may hold against its reader, and what is read of it."""

from __future__ import annotations

import os
import struct
import sys
import tracemalloc
import zipfile

import pytest

from grading.intake import find_submissions, load
from grading.intake.contents import MAX_DIRECTORY
from tests.grading.intake.handed_in import MINE, put, put_all, zipped

MB = 1 << 20
LOADER = sys.modules["grading.intake.load"]  # the package's attribute of this name is the function


def limits(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setattr(LOADER, name, value)


def test_a_folder_and_its_zip_give_the_same_files_and_digest(folder, week):
    put_all(folder / "a", MINE | {"notes/ünï.txt": "x"})
    put(folder / "b.zip", zipped(MINE | {"notes/ünï.txt": "x"}))
    put(folder / "c.zip", zipped(MINE | {"notes/ünï.txt": "y"}))
    put(folder / "d.zip", zipped({f"{name}2": text for name, text in (MINE | {"notes/ünï.txt": "x"}).items()}))
    a, b, c, d = (load(entry, week) for entry in find_submissions(folder, week))
    assert a.files == b.files == {name: text.encode() for name, text in (MINE | {"notes/ünï.txt": "x"}).items()}
    assert a.digest == b.digest and len({a.digest, c.digest, d.digest}) == 3
    assert a.notes == b.notes == []


def test_links_in_a_folder_are_not_followed(folder, read, tmp_path):
    put_all(tmp_path / "secret", {"ring.py": "secret", "deep/cost.py": "secret"})
    put_all(folder / "eve", {"cost.py": "mine"})
    (folder / "eve" / "ring.py").symlink_to(tmp_path / "secret" / "ring.py")
    (folder / "eve" / "deep").symlink_to(tmp_path / "secret" / "deep")
    (folder / "eve" / "loop").symlink_to(folder / "eve")
    (folder / "eve" / "week91.zip").symlink_to(tmp_path / "secret" / "ring.py")
    os.mkfifo(folder / "eve" / "pipe.py")
    submission = read()
    assert submission.files == {"cost.py": b"mine"}
    assert submission.left_out == dict.fromkeys(
        ("ring.py", "deep", "loop", "week91.zip"), "is a link, and links are not followed"
    ) | {"pipe.py": "is no plain file"}
    assert "Not used: pipe.py is no plain file." in submission.notes


def test_a_folder_that_becomes_a_link_after_it_was_looked_at(folder, week, tmp_path, monkeypatch):
    """The student may still own the folder: between listing and reading, everything can be exchanged."""
    put_all(tmp_path / "secret", {"ring.py": "secret"})
    put_all(folder / "eve" / "inner", {"ring.py": "mine"})
    put_all(folder / "eve" / "other", {"cost.py": "mine"})
    real = LOADER._read

    def swap(result, listed):
        (folder / "eve" / "inner" / "ring.py").unlink()
        (folder / "eve" / "inner").rmdir()
        (folder / "eve" / "inner").symlink_to(tmp_path / "secret")
        (folder / "eve" / "other" / "cost.py").unlink()
        (folder / "eve" / "other" / "cost.py").symlink_to(tmp_path / "secret" / "ring.py")
        real(result, listed)

    monkeypatch.setattr(LOADER, "_read", swap)
    (entry,) = find_submissions(folder, week)
    submission = load(entry, week)
    assert submission.files == {} and set(submission.left_out) == {"inner/ring.py", "other/cost.py"}


@pytest.mark.parametrize(
    "name, why",
    [
        ("../evil.py", "leads out"),
        ("a/../../evil.py", "leads out"),
        ("/etc/evil.py", "leads out"),
        ("..\\evil.py", "leads out"),
        ("C:\\evil.py", "leads out"),
        ("c:evil.py", "leads out"),
        ("a//evil.py", "no file's"),
        ("./evil.py", None),
        ("/".join("a" * 40), "folders deep"),
        ("x" * 300 + ".py", "too long"),
        ("/".join(["y" * 200] * 6), "too long"),
    ],
)
def test_zip_names_that_lead_elsewhere(folder, read, name, why):
    put(folder / "eve.zip", zipped({name: "evil", "ring.py": "mine"}))
    submission = read()
    assert submission.files == {"ring.py": b"mine"} if why else set(submission.files) <= {"ring.py", "evil.py"}
    assert all(why in reason for reason in submission.left_out.values()) if why else True
    assert bool(submission.left_out) == bool(why)


def test_zip_links_duplicates_passwords_and_odd_methods(folder, read):
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = zipped([("ring.py", "first"), ("ring.py", "last"), ("cost.py", "x")], links={"passwd": "/etc/passwd"})
    locked = data.replace(b"cost.py", b"lock.py")
    put_all(
        folder / "eve",
        {
            "a.zip": data,
            "b.zip": _flagged(locked, "lock.py"),
            "c.zip": zipped({"big.py": "x" * 500}, method=zipfile.ZIP_LZMA),
        },
    )
    submission = read()
    assert submission.files["a.zip/ring.py"] == b"last"
    assert "In the archive more than once, and the last holds: a.zip/ring.py, b.zip/ring.py." in submission.notes
    assert submission.left_out["a.zip/passwd"] == "is a link, and links are not followed"
    assert submission.left_out["b.zip/lock.py"] == "has a password"
    assert "is packed by a method that is not read" in submission.left_out["c.zip/big.py"]


def _flagged(data: bytes, name: str) -> bytes:
    """The zip with one member marked as encrypted."""
    data = bytearray(data)
    at = data.rfind(name.encode()) - 46
    assert data[at : at + 4] == b"PK\1\2"
    data[at + 8] |= 1
    return bytes(data)


def test_a_bomb_ends_at_the_caps(folder, read, monkeypatch):
    limits(monkeypatch, MAX_FILE=2 * MB, MAX_TOTAL=5 * MB)
    bomb = zipped({"ring.py": "mine", "zeros.bin": bytes(40 * MB)})
    put_all(
        folder / "eve",
        {
            "bomb.zip": bomb,
            "liar.zip": _understated(bomb),
            "work.py": "mine",
            **{f"x/y/b{n}.bin": bytes(2 * MB) for n in range(4)},
        },
    )
    tracemalloc.start()
    submission = read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * MB  # what is kept, one file being read, buffers; the bombs are 80 MB
    assert submission.files["work.py"] == submission.files["bomb.zip/ring.py"] == b"mine"
    assert sum(map(len, submission.files.values())) <= 5 * MB
    assert submission.left_out["bomb.zip/zeros.bin"] == "is larger than 2 MiB"
    assert {"x/y/b2.bin", "x/y/b3.bin"} <= set(submission.left_out)


def _understated(data: bytes) -> bytes:
    """The zip with every member's unpacked size claimed to be 10 bytes."""
    data = bytearray(data)
    at = data.find(b"PK\1\2")
    while at >= 0:
        struct.pack_into("<L", data, at + 24, 10)
        at = data.find(b"PK\1\2", at + 4)
    return bytes(data)


def test_a_bomb_inside_an_archive_inside_an_archive(folder, read, monkeypatch):
    limits(monkeypatch, MAX_FILE=MB, MAX_TOTAL=2 * MB)
    deepest = zipped({"timing.py": "too deep"})
    inner = zipped({"ring.py": "mine", "deeper.zip": zipped({"cost.py": "deep", "deepest.zip": deepest})})
    put(folder / "eve.zip", zipped({"inner.zip": inner, "fat.zip": bytes(30 * MB)}))
    tracemalloc.start()
    submission = read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 15 * MB  # fat.zip is 30
    assert submission.files["inner.zip/ring.py"] == b"mine"
    assert submission.files["inner.zip/deeper.zip/cost.py"] == b"deep"
    assert "inner.zip/deeper.zip/deepest.zip/timing.py" not in submission.files
    assert any("deepest.zip was not opened" in note for note in submission.notes)
    assert "is too much" in submission.left_out["fat.zip"]


def test_code_comes_before_everything_else(folder, read, monkeypatch):
    limits(monkeypatch, MAX_FILES=3)
    put_all(folder / "eve", {**{f"a{n}.png": "x" for n in range(20)}, "z/ring.py": "mine", "lab.ipynb": "{}"})
    put(folder / "eve/lab.ipynb.json", "{}")
    submission = read()
    assert set(submission.files) == {"z/ring.py", "lab.ipynb", "lab.ipynb.json"}
    assert len(submission.left_out) == 20
    (note,) = submission.notes
    assert "a1.png, a10.png" in note and "and 15 more; each is too much" in note


def test_an_endless_folder_is_not_read_to_its_end(folder, read, monkeypatch):
    limits(monkeypatch, MAX_LISTED=50)
    put_all(folder / "eve", {f"f{n:03}.py": "" for n in range(100)})
    submission = read()
    assert len(submission.files) == 50
    assert "There are more than 50 files in this hand-in; those after them were not looked at." in submission.notes


def test_a_list_of_members_without_end_is_not_even_read(folder, read, monkeypatch):
    """A list of 5 MiB would become 100 MB of objects."""
    data = bytearray(zipped({"ring.py": "mine"}))
    at = data.rfind(b"PK\5\6")
    claimed = (
        bytes(data[:at])
        + bytes(MAX_DIRECTORY + 1000)
        + bytes(data[at : at + 12])
        + struct.pack("<LLH", MAX_DIRECTORY + 1000, at, 0)
    )
    put(folder / "eve.zip", claimed)
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("the list was read"))
    assert "lists more files than any hand-in needs" in read().notes[0]


def test_the_long_form_of_that_list_is_looked_at_too(folder, read, monkeypatch):
    small = zipped({"ring.py": "mine"})
    at = small.rfind(b"PK\5\6")
    end64 = b"PK\6\6" + struct.pack("<QHHLLQQQQ", 44, 45, 45, 0, 0, 1, 1, MAX_DIRECTORY + 1000, 0)
    locator = b"PK\6\7" + struct.pack("<LQL", 0, at, 1)
    put(folder / "eve.zip", small[:at] + end64 + locator + small[at : at + 12] + struct.pack("<LLH", 0xFFFFFFFF, 0, 0))
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("the list was read"))
    assert "lists more files than any hand-in needs" in read().notes[0]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        b"no zip at all" * 1000,
        zipped(MINE)[:-30],
        zipped(MINE)[40:],
        zipped({"rüg.py": "x" * 9000}).replace("ü".encode(), b"\xff\xff"),
    ],
)
def test_broken_zips_are_told(folder, read, content):
    put(folder / "eve.zip", content)
    submission = read()
    assert not set(submission.files) & {"ring.py"}
    assert submission.notes


def test_a_name_that_is_a_file_and_a_folder(folder, read):
    put(folder / "eve.zip", zipped({"ring.py": "x", "ring.py/evil.py": "x", "ring.pyx/fine.py": "x"}))
    submission = read()
    assert set(submission.files) == {"ring.py", "ring.pyx/fine.py"}
    assert submission.left_out == {"ring.py/evil.py": "lies in something that is a file as well"}


def test_a_damaged_member_costs_only_itself(folder, read):
    data = zipped({"ring.py": "x" * 2000, "cost.py": "fine"}, method=zipfile.ZIP_STORED)
    put(folder / "eve.zip", data.replace(b"x" * 50, b"y" * 50, 1))
    submission = read()
    assert submission.files == {"cost.py": b"fine"}
    assert submission.left_out == {"ring.py": "cannot be unpacked (BadZipFile)"}


def test_names_that_tools_write_in_their_own_way(folder, read):
    windows = zipped({"week91_rings\\ring.py": "mine"})
    mac = zipped({"Übung/cost.py": "mine"})
    put_all(folder / "eve", {"w.zip": windows, "m.zip": _without_utf8_flag(mac)})
    assert {"w.zip/week91_rings/ring.py", "m.zip/Übung/cost.py"} == set(read().files)


def _without_utf8_flag(data: bytes) -> bytes:
    data = bytearray(data)
    for sign, at_flag in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = data.find(sign)
        data[at + at_flag + 1] &= ~0x08
    return bytes(data)


def test_what_tools_leave_about_is_no_word(folder, read):
    put_all(
        folder / "eve",
        {
            "ring.py": "mine",
            "__MACOSX/ring.py": "x",
            "._ring.py": "x",
            ".git/config": "x",
            "__pycache__/ring.pyc": "x",
            ".ipynb_checkpoints/lab.ipynb": "x",
            "env/pyvenv.cfg": "x",
            "env/lib/cost.py": "x",
            "ring.py~": "x",
            "submission_secret.txt": "x",
            "timestamp.txt": "x",
        },
    )
    submission = read()
    assert set(submission.files) == {"ring.py"} and not submission.left_out and not submission.notes


def test_empty_hand_ins(folder, week):
    (folder / "a").mkdir()
    put(folder / "b.zip", zipped({}))
    put_all(folder / "c", {".DS_Store": ""})
    for entry in find_submissions(folder, week):
        assert load(entry, week).notes == ["There is no file in this hand-in."]


def test_other_archives_are_told(folder, read):
    put_all(folder / "eve", {"work.rar": b"Rar!"})
    assert read().notes == ["work.rar was not opened: hand in the files, or one .zip of them."]


def test_a_file_that_may_not_be_read(folder, read, monkeypatch):
    put_all(folder / "eve", {"ring.py": "x", "cost.py": "mine"})
    real = os.open

    def refusing(path, *rest, **more):
        if path == "ring.py":
            raise PermissionError(13, "Permission denied")
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refusing)
    submission = read()
    assert submission.files == {"cost.py": b"mine"}
    assert submission.left_out == {"ring.py": "cannot be read (Permission denied)"}


def test_nothing_stays_open(folder, read):
    put_all(folder / "eve", {"w.zip": zipped(MINE), "deep/er/ring.py": "x", "v.zip": b"broken"})
    before = len(os.listdir("/proc/self/fd"))
    read()
    assert len(os.listdir("/proc/self/fd")) == before


def test_deep_folders_end(folder, read):
    put(folder / "eve" / "/".join("a" * 30) / "ring.py", "x")
    submission = read()
    assert not submission.files and "folders deep" in submission.notes[0]
