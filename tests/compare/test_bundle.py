"""`lab bundle`: a run becomes one archive, the same bytes each time; reading it believes nothing that is not
verified."""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from labkit import cli
from labkit.compare import background, bundle
from labkit.errors import LabError
from labkit.record.packed import pack as pack_record
from labkit.record.run import RunRecord

HARDWARE = {"gpus": []}


def a_train_run(path, steps=3, planned=3, status="finished"):
    record = RunRecord.create(path, kind="train", command="lab train", config={"steps": planned}, hardware=HARDWARE)
    for step in range(1, steps + 1):
        record.step(step=step, loss=3.0 / step)
    record.event("note", message="a word")
    if status != "running":
        record.finish(status)
    record.close()
    return path


@pytest.fixture
def run(tmp_path):
    """A finished comparison of two arms, with a report, a picture, a checkpoint and a log that names this machine."""
    folder = tmp_path / "runs" / "h100"
    record = RunRecord.create(folder, kind="compare", command="lab compare", config={"train": {}}, hardware=HARDWARE)
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


def sentence(error):
    text = str(error.value)
    assert "\n" not in text and "Traceback" not in text
    return text


def packed(name, files):
    """An archive made by hand: whatever is in `files`, in this order."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb") as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for key, content in files:
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(key)
            if not isinstance(content, tarfile.TarInfo):
                info.size = len(content)
            tar.addfile(info, None if isinstance(content, tarfile.TarInfo) else io.BytesIO(content))
    name.write_bytes(buffer.getvalue())
    return name


def members(file):
    with tarfile.open(file) as tar:
        return [(m.name, tar.extractfile(m).read()) for m in tar.getmembers()]


# ---- there and back


def test_there_and_back(run, tmp_path):
    path, made = bundle.pack(run)
    assert path == run.parent / "h100.tar.gz"
    found = bundle.read(path)
    assert found.files == made.files and found.manifest == made.manifest and found.manifest["state"] == "whole"
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


def test_checkpoints_and_large_files_stay_and_are_shown(run, monkeypatch):
    monkeypatch.setattr(bundle, "LARGEST", 2000)
    (run / "trace.bin").write_bytes(b"t" * 2001)
    _, made = bundle.pack(run)
    assert made.manifest["left_out"] == {"arms/fp8/checkpoints": 5000, "trace.bin": 2001}
    assert "left behind: arms/fp8/checkpoints" in made.sentence and "trace.bin" not in made.files


def test_the_same_run_gives_the_same_bytes(run, tmp_path):
    first = bundle.pack(run)[0].read_bytes()
    for path in [run, *run.rglob("*")]:
        os.utime(path, (1, 1))
    (run / "run.json").chmod(0o600)
    other = tmp_path / "other.tar.gz"
    words, env = [sys.executable, "-m", "labkit", "bundle", run, "--out", other], {**os.environ, "PYTHONHASHSEED": "7"}
    subprocess.run(words, check=True, cwd=Path(bundle.__file__).parents[2], env=env)
    assert other.read_bytes() == first
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
    whole = b"\n".join(made.files.values()) + json.dumps(made.manifest).encode()
    for word in (b"gpu-box-17", b"/srv/secret", str(run.parent).encode(), f"{Path.home()}/".encode()):
        assert word not in whole, word
    assert made.files["compare.log"] == b"on <host>: ~/data/a.txt and .../b.txt\n"
    assert b"base64,ab+/cd/ef" in made.files["report.html"]  # a picture's letters are no path


def test_links_are_not_followed(run, tmp_path):
    (tmp_path / "secret").write_text("no")
    (run / "link.txt").symlink_to(tmp_path / "secret")
    (run / "folder").symlink_to(tmp_path)
    _, made = bundle.pack(run)
    assert not [name for name in made.files if "link" in name or "folder" in name]


# ---- runs that are not whole


def test_a_run_that_goes_on(run):
    record = RunRecord.open(run / "arms" / "fp8")
    record.update(status="running")
    with pytest.raises(LabError) as error:
        bundle.pack(run)
    assert "arms/fp8 is still going on (step 3 of 3)" in sentence(error) and "--as-is" in sentence(error)
    record.close()
    with pytest.raises(LabError, match="arms/fp8 was stopped or killed"):
        bundle.pack(run)


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
    assert made.manifest["state"] == "paused (2 arms finished); the same command goes on with it"
    assert "arms/later/steps.jsonl" in made.files
    assert bundle.command(None, None, path, None, False) == 0


def test_a_packed_record_is_whole(run):
    shutil.rmtree(run / "arms" / "fp8" / "checkpoints")
    (run / "compare.log").unlink()
    pack_record(run)
    assert bundle.state(run) == "whole"
    next(run.glob("arms/fp8*")).unlink()
    assert bundle.state(run) == "the run lacks the record of its arm fp8 (arms/fp8)"


def test_a_killed_run_says_how_far_it_came(tmp_path):
    run = a_train_run(tmp_path / "killed", steps=2, planned=9, status="running")
    with pytest.raises(LabError, match=r"the run was stopped or killed \(step 2 of 9\)"):
        bundle.pack(run)
    path, made = bundle.pack(run, as_is=True)
    assert "not whole: the run was stopped or killed (step 2 of 9)" in bundle.read(path).sentence
    assert made.files["steps.jsonl"].count(b"\n") == 2


def test_a_failed_run(tmp_path):
    run = a_train_run(tmp_path / "failed", status="failed")
    with pytest.raises(LabError, match="its status is 'failed'"):
        bundle.pack(run)


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
    with pytest.raises(LabError) as error:
        bundle.pack(run)
    assert said in sentence(error)
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


def test_steps_that_end_early_and_torn_lines(tmp_path):
    with pytest.raises(LabError, match="its steps end at 2 of 3"):
        bundle.pack(a_train_run(tmp_path / "short", steps=2))
    torn = a_train_run(tmp_path / "torn")
    with open(torn / "steps.jsonl", "a") as file:
        file.write('{"step": 4, "lo')
    with pytest.raises(LabError, match="1 lines that cannot be read"):
        bundle.pack(torn)
    window = a_train_run(tmp_path / "window", planned=10**6)  # a clock ended it, not a number of steps
    assert bundle.state(window) == "whole"


def test_a_file_that_grows_while_it_is_read(run, monkeypatch):
    read = Path.read_bytes

    def growing(path):
        content = read(path)
        if path.name == "compare.log":
            with open(path, "ab") as file:
                file.write(b"more\n")
        return content

    monkeypatch.setattr(Path, "read_bytes", growing)
    with pytest.raises(LabError, match="changed while it was read"):
        bundle.pack(run)


def test_what_lies_there_is_not_overwritten(run, tmp_path):
    out = tmp_path / "mine.tar.gz"
    out.write_bytes(b"my own")
    with pytest.raises(LabError, match="is no whole bundle of h100"):
        bundle.pack(run, out)
    assert out.read_bytes() == b"my own"
    other = a_train_run(tmp_path / "other")
    bundle.pack(other, tmp_path / "o.tar.gz")
    with pytest.raises(LabError, match="is no whole bundle of h100"):
        bundle.pack(run, tmp_path / "o.tar.gz")
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
        with pytest.raises(LabError, match="copy it again|is no bundle") as error:
            bundle.read(cut)
        sentence(error)


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
    assert len(refused) > 50 and "\n" not in "".join(refused)


def test_altered_missing_and_added(run, tmp_path):
    original = members(bundle.pack(run)[0])
    file = tmp_path / "x.tar.gz"
    altered = [(n, c.replace(b'"loss": 3.0', b'"loss": 1.0')) for n, c in original]
    with pytest.raises(LabError, match="was altered: 'arms/bf16/steps.jsonl' is not what was packed"):
        bundle.read(packed(file, altered))
    with pytest.raises(LabError, match="is not complete: arms/fp8/run.json is missing"):
        bundle.read(packed(file, [m for m in original if not m[0].endswith("fp8/run.json")]))
    with pytest.raises(LabError, match="'extra.py', of which its manifest does not speak"):
        bundle.read(packed(file, [*original, ("h100/extra.py", b"print()")]))
    with pytest.raises(LabError, match="'other/run.json', of which its manifest does not speak"):
        bundle.read(packed(file, [*original, ("other/run.json", b"{}")]))
    with pytest.raises(LabError, match="no readable BUNDLE.json"):
        bundle.read(packed(file, original[1:]))
    with pytest.raises(LabError, match="which no bundle has"):
        bundle.read(packed(file, [*original, original[-1]]))


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
    with pytest.raises(LabError, match="no readable BUNDLE.json"):
        bundle.read(packed(tmp_path / "x.tar.gz", [("h100/BUNDLE.json", head.encode()), ("h100/run.json", b"{}")]))


def test_other_schemas_and_bundles_without_a_run(tmp_path):
    about = {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    head = {"kind": "labkit bundle", "schema": 1, "name": "h100", "run_kind": "train", "state": "whole"}
    head |= {"left_out": {}, "files": {"notes.json": about}}
    files = [("h100/BUNDLE.json", json.dumps(head).encode()), ("h100/notes.json", b"{}")]
    with pytest.raises(LabError, match="holds no run.json"):
        bundle.read(packed(tmp_path / "x.tar.gz", files))
    newer = (files[0][0], json.dumps({**head, "schema": 2}).encode())
    with pytest.raises(LabError, match="schema 2"):
        bundle.read(packed(tmp_path / "x.tar.gz", [newer, files[1]]))


def test_files_that_are_no_archive(tmp_path):
    for content in (b"", b"PK\x03\x04zip", b"hello"):
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(LabError, match="is no bundle: it is no gzip archive"):
            bundle.read(tmp_path / "x")
    with pytest.raises(LabError, match="there is no file"):
        bundle.read(tmp_path / "none")
    with pytest.raises(LabError, match="could not read"):
        bundle.read(tmp_path)


# ---- the command


def test_the_command(run, tmp_path, capsys, monkeypatch):
    def lab(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(["bundle", *map(str, words)])
        return end.value.code, capsys.readouterr()

    code, said = lab(run)
    assert code == 0 and "h100.tar.gz" in said.out
    code, said = lab("--check", run.parent / "h100.tar.gz", "--to", tmp_path / "home")
    assert code == 0 and (tmp_path / "home" / "h100" / "run.json").exists()
    (run / "report.html").unlink()
    code, said = lab(run)
    assert code == 2 and said.err.count("\n") == 1
    assert lab(run, "--as-is")[0] == 0
    assert lab("--check", run.parent / "h100.tar.gz")[0] == 1  # the archive is fine, the run is not
    for words in ((), (run, "--check", run), (run, "--to", tmp_path), ("--check", run, "--as-is")):
        code, said = lab(*words)
        assert code == 2 and said.err.startswith("lab: ") and said.err.count("\n") == 1
