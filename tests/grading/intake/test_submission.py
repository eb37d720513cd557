"""What a submission may hold against its reader, and what is read of it."""

import hashlib
import json
import struct
import tracemalloc
import zipfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grading.intake import submission as reading
from grading.intake.archives import MAX_DIRECTORY
from grading.intake.submission import BESIDE, EMPTY, NOT_OPENED, Submission, read_submission
from labkit.checks.handin import MANIFEST, read_manifest
from tests.grading.intake.handed_in import COST, MINE, PACKAGE, RING, put, zipped

MB = 1 << 20


@pytest.fixture
def read(tmp_path):
    """Read the submission of these files, or of this zip."""

    def run(files, renamed=(), **more):
        data = files if isinstance(files, bytes) else zipped(files, **more)
        return read_submission(put(tmp_path / "1.zip", data), renamed)

    return run


def limits(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setattr(reading, name, value)


def test_files_and_digest(read):
    files = MINE | {"notes/ünï.txt": "x"}
    first = read(files)
    assert first.files == {name: text.encode() for name, text in files.items()} and not first.notes
    assert read(dict(reversed(files.items()))).digest == first.digest == Submission.of("", first.files).digest
    others = [files | {"notes/ünï.txt": "y"}, {f"{name}2": text for name, text in files.items()}]
    assert len({first.digest, *(read(other).digest for other in others)}) == 3


@pytest.mark.parametrize(
    "name, why",
    [
        ("a/../../evil.py", "leads out"),
        ("/etc/evil.py", "leads out"),
        ("..\\evil.py", "leads out"),
        ("c:evil.py", "leads out"),
        ("a//evil.py", "no file's"),
        ("/".join("a" * 40), "folders deep"),
        ("x" * 300 + ".py", "too long"),
        ("/".join(["y" * 200] * 6), "too long"),
    ],
)
def test_names_that_lead_elsewhere(read, name, why):
    found = read({name: "evil", "./ring.py": "mine"})
    assert set(found.files) == {"ring.py"} and [why in reason for reason in found.left_out.values()] == [True]


def test_links_duplicates_passwords_and_odd_methods(read):
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = zipped([("ring.py", "first"), ("ring.py", "last"), ("cost.py", "x")], links={"passwd": "/etc/passwd"})
    locked = _flagged(data.replace(b"cost.py", b"lock.py"), "lock.py")
    odd = zipped({"big.py": "x" * 500}, method=zipfile.ZIP_LZMA)
    found = read({"a.zip": data, "b.zip": locked, "c.zip": odd})
    assert found.files["a.zip/ring.py"] == b"last"
    assert any("the last holds: a.zip/ring.py, b.zip/ring.py" in note for note in found.notes)
    assert "is a link" in found.left_out["a.zip/passwd"] and "password" in found.left_out["b.zip/lock.py"]
    assert "is packed by a method" in found.left_out["c.zip/big.py"]


def _flagged(data: bytes, name: str) -> bytes:
    """The zip with one member marked as encrypted."""
    data = bytearray(data)
    at = data.rfind(name.encode()) - 46
    assert data[at : at + 4] == b"PK\1\2"
    data[at + 8] |= 1
    return bytes(data)


def peak_of(work):
    tracemalloc.start()
    found = work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found, peak


def test_a_bomb_ends_at_the_caps(read, monkeypatch):
    limits(monkeypatch, MAX_FILE=2 * MB, MAX_TOTAL=5 * MB)
    bomb = zipped({"ring.py": "mine", "zeros.bin": bytes(40 * MB)})
    fat = {f"x/y/b{n}.bin": bytes(2 * MB) for n in range(4)}
    data = zipped({"bomb.zip": bomb, "liar.zip": _understated(bomb), "work.py": "mine", **fat})
    found, peak = peak_of(lambda: read(data))
    assert peak < 20 * MB  # what is kept, one file being read, buffers; the bombs are 80 MB
    assert found.files["work.py"] == found.files["bomb.zip/ring.py"] == b"mine"
    assert sum(map(len, found.files.values())) <= 5 * MB
    assert found.left_out["bomb.zip/zeros.bin"] == "is larger than 2 MiB"
    assert {"x/y/b2.bin", "x/y/b3.bin"} <= set(found.left_out) and found.attention


def _understated(data: bytes) -> bytes:
    """The zip with every member's unpacked size claimed to be 10 bytes."""
    data = bytearray(data)
    at = data.find(b"PK\1\2")
    while at >= 0:
        struct.pack_into("<L", data, at + 24, 10)
        at = data.find(b"PK\1\2", at + 4)
    return bytes(data)


def test_archives_in_archives_are_opened_twice_and_no_deeper(read, monkeypatch):
    limits(monkeypatch, MAX_FILE=MB, MAX_TOTAL=2 * MB)
    deepest = zipped({"timing.py": "too deep"})
    inner = zipped({"ring.py": "mine", "deeper.zip": zipped({"cost.py": "deep", "deepest.zip": deepest})})
    data = zipped({"inner.zip": inner, "fat.zip": bytes(30 * MB)})
    found, peak = peak_of(lambda: read(data))
    assert peak < 15 * MB  # fat.zip is 30
    assert found.files["inner.zip/ring.py"] == b"mine" and found.files["inner.zip/deeper.zip/cost.py"] == b"deep"
    assert not any(name.endswith("timing.py") for name in found.files)
    assert any("deepest.zip" in note and note.endswith(NOT_OPENED) for note in found.notes)
    assert "is too much" in found.left_out["fat.zip"]


def test_code_comes_before_everything_else(read, monkeypatch):
    limits(monkeypatch, MAX_FILES=3)
    found = read({**{f"a{n}.png": "x" for n in range(20)}, "z/ring.py": "m", "lab.ipynb": "{}", "lab.ipynb.json": "{}"})
    assert set(found.files) == {"z/ring.py", "lab.ipynb", "lab.ipynb.json"} and len(found.left_out) == 20
    assert len(found.notes) == 1 and "and 15 more" in found.notes[0]


def test_an_endless_list_is_not_read_to_its_end(read, monkeypatch):
    limits(monkeypatch, MAX_LISTED=50)
    found = read({f"f{n:03}.py": "" for n in range(100)})
    assert len(found.files) == 50 and "more than 50 files" in found.notes[0]


@pytest.mark.parametrize("long", [False, True])
def test_a_list_of_members_without_end_is_not_even_read(read, monkeypatch, long):
    """A list of 5 MiB would become 100 MB of objects. Its size stands at the end, in a short or a long form."""
    small, many = zipped({"ring.py": "mine"}), MAX_DIRECTORY + 1000
    at = small.rfind(b"PK\5\6")
    if long:
        end64 = b"PK\6\6" + struct.pack("<QHHLLQQQQ", 44, 45, 45, 0, 0, 1, 1, many, 0)
        locator = b"PK\6\7" + struct.pack("<LQL", 0, at, 1)
        data = small[:at] + end64 + locator + small[at : at + 12] + struct.pack("<LLH", 0xFFFFFFFF, 0, 0)
    else:
        data = small[:at] + bytes(many) + small[at : at + 12] + struct.pack("<LLH", many, at, 0)
    monkeypatch.setattr(zipfile, "ZipFile", lambda *_: pytest.fail("the list was read"))
    assert "lists more files" in read(data).notes[0]


@given(st.binary(max_size=400), st.integers(0, 300), st.integers(0, 40))
@example(b"", 40, 400)
def test_no_bytes_break_the_reader(read, noise, at, length):
    whole = zipped({"ring.py": "x" * 50, "in.zip": zipped({"cost.py": "y"})})
    for data in (noise, whole[:at] + noise + whole[at + length :]):
        found = read(data)
        assert found.digest and (found.files or found.left_out or found.notes)


def test_a_name_that_is_a_file_and_a_folder_and_a_damaged_member_cost_only_themselves(read):
    found = read({"ring.py": "x", "ring.py/evil.py": "x", "ring.pyx/fine.py": "x"})
    assert set(found.files) == {"ring.py", "ring.pyx/fine.py"} and set(found.left_out) == {"ring.py/evil.py"}
    inner = zipped({"a.py": "y" * 99}) + b"z" * 99
    data = zipped({"ring.py": "x" * 2000, "cost.py": "fine", "in.zip": inner}, method=0)
    found = read(data.replace(b"x" * 50, b"y" * 50, 1).replace(b"z" * 50, b"w" * 50, 1))
    assert set(found.files) == {"cost.py"} and set(found.left_out) == {"ring.py", "in.zip"}


def test_names_that_tools_write_in_their_own_way(read):
    windows, mac = zipped({"week91_rings\\ring.py": "mine"}), bytearray(zipped({"Übung/cost.py": "mine"}))
    for sign, at_flag in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        mac[mac.find(sign) + at_flag + 1] &= ~0x08  # macOS does not say that it is UTF-8
    found = read({"w.zip": windows, "m.zip": bytes(mac)}).files
    assert set(found) == {"w.zip/week91_rings/ring.py", "m.zip/Übung/cost.py"}


def test_what_tools_leave_about_is_no_word(read):
    junk = (
        "__MACOSX/ring.py", "._ring.py", ".git/config", "__pycache__/r.pyc", ".ipynb_checkpoints/l.ipynb", "ring.py~",
    )  # fmt: skip
    found = read({"ring.py": "mine", **dict.fromkeys(junk, "x")})
    assert set(found.files) == {"ring.py"} and not found.left_out and not found.notes
    assert read(dict.fromkeys(junk, "x")).notes == read({}).notes == [EMPTY]
    assert read({"work.rar": b"Rar!"}).notes == [f"work.rar {NOT_OPENED}"], "another archive"


def test_a_renamed_file_counts_under_its_new_name(read):
    found = read({"Ring (1).py": RING}, [("Ring (1).py", "ring.py"), ("gone.py", "cost.py")])
    assert found.files == {"ring.py": RING.encode()} and len(found.notes) == 1
    assert found.digest == read({"ring.py": RING}).digest != read({"Ring (1).py": RING}).digest
    files = handin({f"{PACKAGE}/Ring.py": RING})
    found = read(files, [(f"{PACKAGE}/Ring.py", f"{PACKAGE}/ring.py")])
    assert found.manifest and found.files == {f"{PACKAGE}/ring.py": RING.encode()}


def test_an_archive_that_is_gone_or_a_link_is_reported(tmp_path):
    put(tmp_path / "secret.zip", zipped({"ring.py": "secret"}))
    (tmp_path / "link.zip").symlink_to(tmp_path / "secret.zip")
    for name in ("link.zip", "none.zip"):
        assert not read_submission(tmp_path / name).files and read_submission(tmp_path / name).notes


# -- what `lab handin` packed -----------------------------------------------------------------------------------------
FILES = {f"{PACKAGE}/{name}": text for name, text in MINE.items()}


def handin(files=FILES, week="week91", made="2026-11-20T18:00:00+00:00", **other):
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in files.items()} | other
    manifest = {"format": 1, "week": week, "made": made, "files": digests, "versions": {"labkit": "0"}}
    return {MANIFEST: json.dumps(manifest), **files}


@pytest.mark.parametrize("inside", ["", "week91.zip", "download/week91.zip"])
def test_a_manifests_files_are_where_it_says(read, inside):
    found = read({inside: zipped(handin())} if inside else handin())
    assert found.files == {name: text.encode() for name, text in FILES.items()}
    assert found.manifest.week == "week91" and not found.notes


def test_of_two_manifests_the_newest_holds_and_a_loose_file_stays_beside(read):
    old, name = {**FILES, f"{PACKAGE}/ring.py": "old"}, f"{PACKAGE}/ring.py"
    earlier = zipped(handin(old, made="2026-11-19T18:00:00+00:00"))
    found = read({"a.zip": zipped(handin()), "b.zip": earlier, name: "loose"})
    assert found.files[name] == RING.encode() and found.files[f"{BESIDE}{name}"] == b"loose"
    assert found.files[f"{BESIDE}b.zip/{name}"] == b"old"


@pytest.mark.parametrize(
    "files",
    [
        handin() | {f"{PACKAGE}/ring.py": "changed since"},
        handin(**{"../evil.py": hashlib.sha256().hexdigest()}),
        handin(**{"\ud800.py": "0" * 64}),
        FILES | {MANIFEST: "{}"},
        FILES | {MANIFEST: b"\xff" * 99},
    ],
)
def test_a_manifest_that_does_not_fit_says_nothing(read, files):
    found = read(files)
    assert found.manifest is None and found.files[f"{PACKAGE}/cost.py"] == COST.encode()


LEAF = st.none() | st.text() | st.integers()


@given(st.recursive(LEAF, lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=4))
def test_no_manifest_breaks_the_reader(found):
    whole = {"format": 1, "week": "w", "made": "2026-11-20T18:00:00+00:00", "files": {}, "versions": {}}
    for key in whole:
        read_manifest(json.dumps({**whole, key: found}).encode())
