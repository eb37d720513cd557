"""`lab bundle`: a run becomes one archive, the same bytes each time; reading it believes nothing that is not
verified."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from labkit import cli
from labkit.compare import background, bundle
from labkit.errors import LabError
from labkit.record.packed import pack as pack_record
from labkit.record.run import RunRecord
from tests.compare.comparing import training


def a_train_run(path, steps=3, planned=3, status="finished"):
    return training(path, {step: 3.0 / step for step in range(1, steps + 1)}, status, config={"steps": planned})


@pytest.fixture
def run(tmp_path):
    """A finished comparison of two arms, with a report, a picture, a checkpoint and a log that names this machine."""
    folder = tmp_path / "runs" / "h100"
    record = RunRecord.create(folder, kind="compare", command="lab compare", config={"train": {}}, hardware={})
    for arm in ("bf16", "fp8"):
        a_train_run(folder / "arms" / arm)
    (folder / "figures" / "loss.png").write_bytes(b"\x89PNG" + bytes(range(256)))
    (folder / "report.html").write_text(f"<p>drawn</p><img src='data:image/png;base64,ab+/cd/ef'> {Path.home()}/x")
    (folder / "compare.log").write_text(f"read {Path.home()}/data/a.txt and /srv/secret/place/b.txt\n")
    (folder / "arms" / "fp8" / "checkpoints" / "step3").mkdir(parents=True)
    (folder / "arms" / "fp8" / "checkpoints" / "step3" / "weights.pt").write_bytes(b"w" * 5000)
    (folder / ".lock").write_text("x")
    record.finish(results={"arms": {"bf16": {}, "fp8": {}}})
    return folder


def packed(name, files):
    """An archive made by hand: whatever is in `files`, in this order."""
    with tarfile.open(name, mode="w:gz") as tar:
        for key, content in files:
            info, data = (content, b"") if isinstance(content, tarfile.TarInfo) else (tarfile.TarInfo(key), content)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return name


def members(file):
    with tarfile.open(file) as tar:
        return [(m.name, tar.extractfile(m).read()) for m in tar.getmembers()]


# ---- there and back


def test_there_and_back(run, tmp_path):
    path, made = bundle.pack(run)
    assert path == run.parent / "h100.tar.gz"
    found = bundle.read(path)
    assert found.files == made.files and found.manifest == made.manifest and found.manifest.state == "whole"
    record = ("run.json", "steps.jsonl", "events.jsonl")
    assert set(found.files) == {*record, "report.html", "compare.log", "figures/loss.png"} | {
        f"arms/{arm}/{name}" for arm in ("bf16", "fp8") for name in record
    }
    assert found.files["figures/loss.png"] == (run / "figures" / "loss.png").read_bytes()
    assert found.files["run.json"] == (run / "run.json").read_bytes()
    home = bundle.unpack(found, tmp_path / "home")
    assert bundle.state(home) == "whole" and home == tmp_path / "home" / "h100"
    assert sorted(os.listdir(tmp_path / "home")) == ["h100"]
    with pytest.raises(LabError, match="is there already"):
        bundle.unpack(found, tmp_path / "home")
    assert bundle.pack(home, tmp_path / "again.tar.gz")[1].files == made.files


def test_checkpoints_large_files_and_links_stay(run, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "LARGEST", 2000)
    (run / "trace.bin").write_bytes(b"t" * 2001)
    (tmp_path / "secret").write_text("no")
    (run / "link.txt").symlink_to(tmp_path / "secret")
    (run / "folder").symlink_to(tmp_path)
    _, made = bundle.pack(run)
    assert made.manifest.left_out == {"arms/fp8/checkpoints": 5000, "trace.bin": 2001}
    assert all(name in made.sentence for name in made.manifest.left_out)
    assert {"trace.bin", "link.txt", "folder"}.isdisjoint(name.partition("/")[0] for name in made.files)


def test_the_same_run_gives_the_same_bytes(run, tmp_path):
    first, other = bundle.pack(run)[0].read_bytes(), tmp_path / "other.tar.gz"
    for path in [run, *run.rglob("*")]:
        os.utime(path, (1, 1))
    (run / "run.json").chmod(0o600)
    assert bundle.pack(run, other)[0].read_bytes() == first
    with tarfile.open(other) as tar:
        for member in tar.getmembers():
            assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)
            assert (member.uname, member.gname) == ("", "")
    assert first[4:8] == b"\0\0\0\0" and not first[3] & 8  # gzip: no time, no name of the file


def test_nothing_of_the_machine_travels(run, monkeypatch):
    monkeypatch.setattr(bundle.os, "uname", lambda: os.uname_result(("Linux", "gpu-box-17", "", "", "")))
    from labkit.record import clean

    monkeypatch.setattr(clean.socket, "gethostname", lambda: "gpu-box-17")
    clean._places.cache_clear()
    (run / "compare.log").write_text(f"on gpu-box-17: {Path.home()}/data/a.txt and /srv/secret/place/b.txt\n")
    (run / "report.html").write_text(f"<p>gpu-box-17</p><img src='data:image/png;base64,ab+/cd/ef'> {Path.home()}/x")
    try:
        _, made = bundle.pack(run)
    finally:
        clean._places.cache_clear()
    whole = b"\n".join(made.files.values()) + made.manifest.model_dump_json().encode()
    for word in (b"gpu-box-17", b"/srv/secret", str(run.parent).encode(), f"{Path.home()}/".encode()):
        assert word not in whole, word
    assert made.files["compare.log"] == b"on <host>: ~/data/a.txt and .../b.txt\n"
    assert b"base64,ab+/cd/ef" in made.files["report.html"]  # a picture's letters are no path


# ---- runs that are not whole


def test_a_run_that_goes_on(run):
    record = RunRecord.open(run / "arms" / "fp8")
    record.update(status="running")
    with pytest.raises(LabError, match=r"arms/fp8 is still going on \(step 3 of 3\).*--as-is"):
        bundle.pack(run)
    record.close()
    assert bundle.state(run).startswith("arms/fp8 was stopped or killed")


def test_a_detached_run_that_is_just_starting_goes_on(run):
    """Its process is there, its record not yet open: reported as going on, not as killed."""
    child = subprocess.Popen(["sleep", "900"])
    try:
        background._write(run, background.Process(child.pid, background.start_of(child.pid), 0.0))
        with pytest.raises(LabError, match="the run is still going on. Wait for it"):
            bundle.pack(run)
    finally:
        child.kill()
        child.wait()
    assert bundle.state(run) == "whole"


def test_a_paused_comparison_travels_and_says_how_many_arms_it_has(run):
    """The end of a budget is no accident: the arm that waits has half of its steps, and the others are whole."""
    a_train_run(run / "arms" / "later", steps=2, planned=9, status="paused")
    RunRecord.open(run).finish("paused")
    path, made = bundle.pack(run)
    assert made.manifest.state == "paused (2 arms finished); the same command goes on with it"
    assert "arms/later/steps.jsonl" in made.files
    assert bundle.command(None, None, path, None, False) == 0


def test_a_packed_record_is_whole(run):
    shutil.rmtree(run / "arms" / "fp8" / "checkpoints")
    (run / "compare.log").unlink()
    pack_record(run)
    assert bundle.state(run) == "whole"
    next(run.glob("arms/fp8*")).unlink()
    assert bundle.state(run) == "the run lacks the record of its arm fp8 (arms/fp8)"


@pytest.mark.parametrize(
    "steps, planned, status, state",
    [
        (2, 9, "running", "the run was stopped or killed (step 2 of 9); the command that started it goes on with it"),
        (3, 3, "failed", "the run has not finished: its status is 'failed'"),
        (2, 3, "finished", "the run says that it finished, but its steps end at 2 of 3"),
        (3, 10**6, "finished", "whole"),  # a clock ended it, not a number of steps
    ],
)
def test_the_state_of_a_training(tmp_path, steps, planned, status, state):
    assert bundle.state(a_train_run(tmp_path / "run", steps, planned, status)) == state


def test_a_torn_line(tmp_path):
    torn = a_train_run(tmp_path / "torn")
    with open(torn / "steps.jsonl", "a") as file:
        file.write('{"step": 4, "lo')
    assert bundle.state(torn) == "the run has 1 lines that cannot be read"


@pytest.mark.parametrize(
    "gone, said",
    [
        ("arms/fp8", "lacks the record of its arm fp8"),
        ("report.html", "lacks report.html: `lab report h100` draws it"),
        ("steps.jsonl", "the run lacks steps.jsonl"),
        ("arms/bf16/events.jsonl", "arms/bf16 lacks events.jsonl"),
    ],
)
def test_missing_files(run, gone, said):
    shutil.rmtree(run / gone) if (run / gone).is_dir() else (run / gone).unlink()
    with pytest.raises(LabError, match=said):
        bundle.pack(run)
    assert said in bundle.read(bundle.pack(run, as_is=True)[0]).sentence


def test_an_arm_that_never_ran_is_not_missing_and_one_that_was_timed_is(run):
    """On a machine that lacks something an arm is skipped: the hour is whole all the same, and can be carried home."""
    record = RunRecord.open(run)
    record.results(arms={"bf16": {"status": "finished"}, "fp8": {"status": "finished"}, "yours": {"status": "skipped"}})
    record.close()
    assert bundle.state(run) == "whole"
    record.results(speed={"arms": {"bf16": {}}})
    record.close()
    assert bundle.state(run) == "the run lacks the record of its timed arm bf16 (speed/bf16)"


def test_what_lies_there_is_not_overwritten(run, tmp_path):
    out = tmp_path / "mine.tar.gz"
    out.write_bytes(b"my own")
    bundle.pack(a_train_run(tmp_path / "other"), tmp_path / "o.tar.gz")
    for there in (out, tmp_path / "o.tar.gz"):
        before = there.read_bytes()
        with pytest.raises(LabError, match="is no whole bundle of h100"):
            bundle.pack(run, there)
        assert there.read_bytes() == before
    bundle.pack(run)
    (run / "events.jsonl").write_text('{"kind": "late"}\n')
    assert bundle.read(bundle.pack(run)[0]).files["events.jsonl"] == b'{"kind": "late"}\n'  # its own, anew
    assert not [path for path in run.parent.iterdir() if path.name.startswith(".")]


# ---- archives that are not whole


def test_cut_off_anywhere(run, tmp_path):
    data = bundle.pack(run)[0].read_bytes()
    cut = tmp_path / "cut.tar.gz"
    for length in [3, 11, len(data) // 3, len(data) // 2, len(data) - 9, len(data) - 1]:
        cut.write_bytes(data[:length])
        with pytest.raises(LabError, match="copy it again|is no bundle"):
            bundle.read(cut)


def test_a_flipped_bit_anywhere(run, tmp_path):
    whole = bundle.read(bundle.pack(run)[0])
    data = (run.parent / "h100.tar.gz").read_bytes()
    refused = []
    for place in range(0, len(data), max(1, len(data) // 60)):
        broken = bytearray(data)
        broken[place] ^= 0x10
        (tmp_path / "flip.tar.gz").write_bytes(broken)
        try:
            found = bundle.read(tmp_path / "flip.tar.gz")
        except LabError as error:
            refused.append(str(error))
        else:  # a few bits carry nothing: gzip's header has some, and so has the compressed stream
            assert (found.files, found.manifest) == (whole.files, whole.manifest)
    assert len(refused) > 50 and "".join(refused).isprintable()


def test_altered_missing_and_added(run, tmp_path):
    original = members(bundle.pack(run)[0])
    file = tmp_path / "x.tar.gz"
    altered = [(n, c.replace(b'"loss": 3.0', b'"loss": 1.0')) for n, c in original]
    without = [m for m in original if not m[0].endswith("fp8/run.json")]
    for files, why in (
        (altered, "was altered: 'arms/bf16/steps.jsonl' is not what was packed"),
        (without, "is not complete: 'arms/fp8/run.json' is missing"),
        ([*original, ("h100/extra.py", b"print()")], "'extra.py', of which its manifest does not speak"),
        ([*original, ("other/run.json", b"{}")], "'other/run.json', of which its manifest does not speak"),
        (original[1:], "no BUNDLE.json that this labkit can read"),
        ([*original, original[-1]], "which no bundle has"),
    ):
        with pytest.raises(LabError, match=why):
            bundle.read(packed(file, files))


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "h100/../../evil", "h100//x", "h100/./x", "h100/.hidden", "h100\\x", "plain"]
)
def test_names_that_no_bundle_has(run, tmp_path, name):
    original = members(bundle.pack(run)[0])
    with pytest.raises(LabError, match="which no bundle has"):
        bundle.read(packed(tmp_path / "x.tar.gz", [(name, b"x"), *original]))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_members_that_are_no_files(run, tmp_path, kind):
    info = tarfile.TarInfo("h100/thing")
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(LabError, match="no plain file"):
        bundle.read(packed(tmp_path / "x.tar.gz", [("", info), *members(bundle.pack(run)[0])]))


def test_a_bomb_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "MOST", 10_000)
    with pytest.raises(LabError, match="unpacks to more"):
        bundle.read(packed(tmp_path / "bomb.tar.gz", [("h100/a", bytes(9_000)), ("h100/b", bytes(9_000))]))
    monkeypatch.setattr(bundle, "LARGEST", 10)
    monkeypatch.setattr(bundle, "MiB", 10)
    with pytest.raises(LabError, match="unpacks to more"):
        bundle.read(packed(tmp_path / "bomb.tar.gz", [("h100/a", bytes(100))]))


@pytest.mark.parametrize(
    "head", ["[]", "{}", '{"files": []}', '{"files": {"run.json": 3}, "left_out": {}}', "not json"]
)
def test_manifests_that_are_none(tmp_path, head):
    head = head.replace('{"files"', '{"kind": "labkit bundle", "files"')
    with pytest.raises(LabError, match="no BUNDLE.json that this labkit can read"):
        bundle.read(packed(tmp_path / "x.tar.gz", [("h100/BUNDLE.json", head.encode()), ("h100/run.json", b"{}")]))


def test_other_schemas_and_bundles_without_a_run(tmp_path):
    about = {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    head = {"kind": "labkit bundle", "schema": 1, "name": "h100", "run_kind": "train", "state": "whole"}
    head |= {"left_out": {}, "files": {"notes.json": about}}
    files = [("h100/BUNDLE.json", json.dumps(head).encode()), ("h100/notes.json", b"{}")]
    with pytest.raises(LabError, match="holds no run.json"):
        bundle.read(packed(tmp_path / "x.tar.gz", files))
    newer = (files[0][0], json.dumps({**head, "schema": 2}).encode())
    with pytest.raises(LabError, match="no BUNDLE.json that this labkit can read"):
        bundle.read(packed(tmp_path / "x.tar.gz", [newer, files[1]]))


def test_files_that_are_no_archive(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "zip").write_bytes(b"PK\x03\x04zip")
    said = {"empty": "is no bundle", "zip": "is no bundle", "none": "there is no file", ".": "could not read"}
    for name, why in said.items():
        with pytest.raises(LabError, match=why):
            bundle.read(tmp_path / name)


# ---- the command


def test_the_command(run, tmp_path, capsys, monkeypatch):
    def lab(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(["bundle", *map(str, words)])
        return end.value.code, capsys.readouterr()

    archive, (code, said) = run.parent / "h100.tar.gz", lab(run)
    assert code == 0 and archive.name in said.out
    code, said = lab("--check", archive, "--to", tmp_path / "home")
    assert code == 0 and (tmp_path / "home" / "h100" / "run.json").exists()
    (run / "report.html").unlink()
    code, said = lab(run)
    assert code == 2 and said.err.count("\n") == 1
    assert lab(run, "--as-is")[0] == 0
    assert lab("--check", archive)[0] == 1  # the archive is fine, the run is not
    for words in ((), (run, "--check", run), (run, "--to", tmp_path), ("--check", run, "--as-is")):
        code, said = lab(*words)
        assert code == 2 and said.err.startswith("lab: ") and said.err.count("\n") == 1
