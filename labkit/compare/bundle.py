"""`lab bundle RUN`: a run as one small archive to carry home, and `lab bundle --check FILE`: is it whole?

The archive holds RUN/BUNDLE.json and the run's regular files but checkpoints, hidden ones, links and any above LARGEST,
cleaned as records are; the same run gives the same bytes. A run that is not whole needs `--as-is`.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from labkit.compare.background import going
from labkit.compare.preset import UNENDING
from labkit.errors import LabError
from labkit.record.clean import scrub
from labkit.record.files import explained, replace_file
from labkit.record.read import PACKED, RunData, as_dict, load_run, parse, read_run, runs_below

MANIFEST = "BUNDLE.json"
PAUSED = "paused"
EMPTY = dict.fromkeys(("kind", "schema", "name", "run_kind", "state", "left_out", "files"))  # a manifest
MiB = 1 << 20
LARGEST = 64 * MiB  # a single file above this stays behind
MOST = 1024 * MiB  # an archive that unpacks to more is not read on
CHECKPOINTS = "checkpoints"  # labkit.train.checkpoint's folder in a run
WORDS = {".json", ".jsonl", ".txt", ".log", ".md", ".toml", ".csv"}  # cleaned line by line
PAGES = {".html", ".svg"}  # hold encoded pictures: only names and places are replaced


@dataclass(frozen=True)
class Bundle:
    """An archive that was read and is whole: its manifest, and its files by name, relative to the run's folder."""

    manifest: dict[str, Any]
    files: dict[str, bytes]

    @property
    def name(self) -> str:
        return self.manifest["name"]

    @property
    def sentence(self) -> str:
        """What it holds, and what it does not."""
        size = f"{len(self.files)} files, {sum(map(len, self.files.values())) / MiB:.1f} MiB"
        text = f"{self.name}: {self.manifest['run_kind']}, {size}, none missing or altered"
        if left := self.manifest["left_out"]:
            each = (f"{what} ({size / MiB:,.0f} MiB)" for what, size in sorted(left.items()))
            text += f"; left behind: {', '.join(each)}"
        said = self.manifest["state"]
        how = f". The run is {said}" if said.startswith(PAUSED) else f". But the run is not whole: {said}"
        return text + ("" if said == "whole" else how)


# ---- is a run whole?


def state(run: Path) -> str:
    """ "whole"; "paused", and how far it came; or one sentence on why this run is not whole. LabError: no run."""
    records, paused = {"the run": read_run(run)}, ""
    for file in sorted(run.rglob("run.json")):
        if file.parent != run and not any(part.startswith(".") for part in file.relative_to(run).parts):
            records[file.parent.relative_to(run).as_posix()] = read_run(file.parent)
    for name, record in records.items():
        if record.alive:
            return f"{name} is still going on ({_progress(record)})"
    if going(run):  # detached a moment ago: it has not opened its record yet
        return "the run is still going on"
    for name, record in records.items():
        if record.status == "paused":
            paused = paused or f"{PAUSED} ({_progress(record)}); the same command goes on with it"
        elif record.status == "interrupted":
            return f"{name} was stopped or killed ({_progress(record)}); the command that started it goes on with it"
        elif record.status != "finished":
            return f"{name} has not finished: its status is '{record.status}'"
    ended = ((name, record) for name, record in records.items() if record.status == "finished")
    return next((f"{name} {what}" for name, record in ended for what in lacking(record)), paused or "whole")


def lacking(record: RunData) -> Iterator[str]:
    """What a finished record should hold and does not. A packed one has its lines in one file, and nothing drawn."""
    packed = any(record.path.glob(f"*/*{PACKED}"))
    for file in () if packed else ("steps.jsonl", "events.jsonl"):
        if not (record.path / file).is_file():
            yield f"lacks {file}"
    if record.truncated:
        yield f"has {record.truncated} lines that cannot be read"
    if record.is_comparison:
        results, there = record.comparison.results, runs_below(record.path / "speed")
        for arm, row in results.arms.items():
            if arm not in record.arms and row.status not in ("skipped", "failed"):
                yield f"lacks the record of its arm {arm} (arms/{arm})"
        lost = [arm for arm in (results.speed.arms if results.speed else ()) if arm not in there]
        yield from (f"lacks the record of its timed arm {arm} (speed/{arm})" for arm in lost)
        if not packed and not (record.path / "report.html").is_file():
            yield f"lacks report.html: `lab report {record.path.name}` draws it"
    last, steps, done = _last_step(record), _planned(record), record.training.results
    if record.run.get("kind") == "train" and steps and not done.speed and not done.stopped and last != steps:
        yield f"says that it finished, but its steps end at {last} of {steps}"


def _progress(record: RunData) -> str:
    """How far it came; a comparison has no steps of its own, only its arms have."""
    if record.is_comparison:
        files = (file for part in ("arms", "speed") for file in record.path.glob(f"{part}/*/run.json"))
        return f"{sum(read_run(file.parent).status == 'finished' for file in files)} arms finished"
    last, steps = _last_step(record), _planned(record)
    return f"step {last}{f' of {steps}' if steps else ''}" if last else "no step yet"


def _last_step(record: RunData) -> int:
    return max((line.get("step", 0) for line in record.steps), default=0)


def _planned(record: RunData) -> int | None:
    """Steps that a training was to take; None if it does not say, or a clock ends it."""
    steps = record.training.config.steps
    return steps if steps and steps < UNENDING else None


# ---- packing


def pack(run: Path, out: Path | None = None, as_is: bool = False) -> tuple[Path, Bundle]:
    """Write the archive (default: RUN.tar.gz beside the folder) and return (its path, what it holds).

    LabError: no run, or none that is whole (unless `as_is`); something else than a bundle of this run is at that place.
    """
    if not run.is_dir():
        raise LabError(f"there is no folder {run}: give a run's folder, for example runs/h100")
    said = state(run)
    if said != "whole" and not said.startswith(PAUSED) and not as_is:
        raise LabError(f"{run}: {said}. Wait for it or repair it, or pack what is there with --as-is")
    name = scrub(run.resolve().name)
    if "/" in name or name in ("", ".", ".."):
        raise LabError(f"{run} has no name of its own: give the run's folder by its name")
    try:
        files, left = collect(run)
    except OSError as error:
        raise LabError(f"could not read {run}: {error.strerror or error}") from None
    head = {
        "kind": "labkit bundle",
        "schema": 1,
        "name": name,
        "run_kind": str(load_run(run).get("kind", "unknown")),
        "state": said,
        "left_out": left,
        "files": {key: {"bytes": len(content), "sha256": _hash(content)} for key, content in sorted(files.items())},
    }
    out = out or run.resolve().parent / f"{run.resolve().name}.tar.gz"
    if out.is_dir():
        raise LabError(f"{out} is a folder: give the archive a name with --out")
    ours = False
    with suppress(LabError):
        ours = out.exists() and read(out).name == name
    if out.exists() and not ours:
        why = f"is there and is no whole bundle of {name}: move it away, or choose another name with --out"
        raise LabError(f"{out} {why}")
    with explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, _archive(name, head, files))
    return out, Bundle(head, files)


def collect(run: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """(files by name, cleaned; {what is left out: its bytes})."""
    files: dict[str, bytes] = {}
    left: dict[str, int] = {}
    for path in sorted(run.rglob("*")):
        parts = path.relative_to(run).parts
        if path.is_symlink() or not path.is_file() or any(part.startswith(".") for part in parts):
            continue
        name, size = "/".join(parts), path.stat().st_size
        if CHECKPOINTS in parts[:-1]:
            folder = scrub("/".join(parts[: parts.index(CHECKPOINTS) + 1]))
            left[folder] = left.get(folder, 0) + size
        elif size > LARGEST:
            left[scrub(name)] = size
        elif name != MANIFEST:
            files[name] = cleaned(name, path.read_bytes())
    return files, left


def cleaned(name: str, content: bytes) -> bytes:
    """A text file without what names the machine or its owner; other files as they are."""
    kind = PurePosixPath(name).suffix.lower()
    if kind not in WORDS | PAGES:
        return content
    text, host = content.decode("utf-8", "surrogateescape"), os.uname().nodename
    if kind in WORDS:
        text = "".join(scrub(line) for line in text.splitlines(keepends=True))
    else:
        for place in {os.path.expanduser("~"), os.getcwd()} - {"/"}:
            text = text.replace(place + "/", "~/")
        text = text.replace(host, "<host>") if scrub(host) == "<host>" else text
    return text.encode("utf-8", "surrogateescape")


def _archive(name: str, head: dict[str, Any], files: dict[str, bytes]) -> bytes:
    """The archive's bytes, the same for the same content: the manifest first, then the files by name."""
    buffer = io.BytesIO()
    text = (json.dumps(head, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=9, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for key, content in [(MANIFEST, text), *sorted(files.items())]:
            info = tarfile.TarInfo(f"{name}/{key}")
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


# ---- reading


def read(file: Path) -> Bundle:
    """Read an archive and verify all of it. LabError: no bundle, or one that is cut off, altered or incomplete."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(file, "rb") as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            total = 0
            for member in tar:
                total += member.size
                stream = tar.extractfile(member) if member.isreg() else None
                if stream is None:
                    raise LabError(f"{file} holds {_shown(member.name)}, which is no plain file: no bundle has that")
                if member.size > LARGEST + MiB or total > MOST:
                    raise LabError(f"{file} unpacks to more than a bundle may: it is not read on")
                if member.name in found or not _plain(member.name):
                    raise LabError(f"{file} holds the name {_shown(member.name)}, which no bundle has")
                found[member.name] = stream.read()
            while packed.read(MiB):  # to the end: only there is the check sum of the compressed data
                pass
    except FileNotFoundError:
        raise LabError(f"there is no file {file}") from None
    except (EOFError, tarfile.ReadError, zlib.error, gzip.BadGzipFile) as error:
        if file.read_bytes()[:2] != b"\x1f\x8b":
            raise LabError(f"{file} is no bundle: it is no gzip archive") from None
        why = error or type(error).__name__
        raise LabError(f"{file} was cut off or damaged on the way ({why}): copy it again") from None
    except OSError as error:
        raise LabError(f"could not read {file}: {error.strerror or error}") from None
    return verify(file, found)


def verify(file: Path, found: dict[str, bytes]) -> Bundle:
    """The bundle that these members make; LabError naming the first thing that is wrong."""
    manifests = [name for name in found if name.count("/") == 1 and name.endswith(f"/{MANIFEST}")]
    head: dict[str, Any] = EMPTY | ((parse(found[manifests[0]]) if len(manifests) == 1 else None) or {})
    tables = [head["files"], head["left_out"], *as_dict(head["files"]).values()]
    if head["kind"] != "labkit bundle" or not all(isinstance(table, dict) for table in tables):
        raise LabError(f"{file} is no bundle: it has no readable {MANIFEST}")
    if head["schema"] != 1:
        raise LabError(f"{file} is a bundle of schema {head['schema']}, and this labkit reads 1: update it")
    name = manifests[0].partition("/")[0]
    files = {key.partition("/")[2]: content for key, content in found.items() if key != manifests[0]}
    strange = [key for key in found if not key.startswith(f"{name}/")] + sorted(set(files) - set(head["files"]))
    if head["name"] != name or strange:
        raise LabError(f"{file} holds {_shown((strange or [name])[0])}, of which its manifest does not speak")
    if absent := sorted(set(head["files"]) - set(files)):
        more = f", and {len(absent) - 1} more" if absent[1:] else ""
        raise LabError(f"{file} is not complete: {absent[0]} is missing{more}")
    for key, about in sorted(head["files"].items()):
        if about != {**about, "bytes": len(files[key]), "sha256": _hash(files[key])}:
            raise LabError(f"{file} was altered: {_shown(key)} is not what was packed")
    if "run.json" not in files or not isinstance(head["state"], str):
        raise LabError(f"{file} is no bundle of a run: it holds no run.json")
    return Bundle({**head, "run_kind": str(head["run_kind"])}, files)


def unpack(bundle: Bundle, into: Path) -> Path:
    """Write the run to `into`/NAME, all or nothing, and return that folder. LabError if it is there already."""
    target = Path(into) / bundle.name
    if target.exists():
        raise LabError(f"{target} is there already: unpack to another folder")
    beside = ""
    try:
        Path(into).mkdir(parents=True, exist_ok=True)
        beside = tempfile.mkdtemp(prefix=f".{bundle.name}.", dir=into)
        for key, content in bundle.files.items():
            path = Path(beside) / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        os.chmod(beside, 0o755)
        os.rename(beside, target)
    except OSError as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise LabError(f"could not unpack to {target}: {error.strerror or error}") from None
    return target


def _plain(name: str) -> bool:
    """A relative name of plain parts, two at least."""
    parts = name.split("/")
    return len(parts) >= 2 and not {"\\", "\0"} & set(name) and all(part and part[0] != "." for part in parts)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _shown(name: str) -> str:
    return ascii(name[:80])


def command(run: Path | None, out: Path | None, check: Path | None, into: Path | None, as_is: bool) -> int:
    """What `lab bundle` does. Returns 0; 1 if a checked archive is whole but its run is not."""
    if check is not None and run is None:
        if out is not None or as_is:
            raise LabError("--out and --as-is go with a run to pack, not with --check")
        bundle = read(check)
        print(bundle.sentence)
        if into is not None:
            print(f"unpacked to {unpack(bundle, into)}")
        return 0 if bundle.manifest["state"].startswith(("whole", PAUSED)) else 1
    if run is None or check is not None:
        raise LabError("give a run's folder to pack, or an archive with --check FILE to verify")
    if into is not None:
        raise LabError("--to goes with --check: it says where to unpack a verified archive")
    path, bundle = pack(run, out, as_is)
    print(f"{path}  {path.stat().st_size / MiB:.2f} MiB")
    print(bundle.sentence)
    return 0
