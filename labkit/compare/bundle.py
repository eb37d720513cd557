"""`lab bundle RUN`: a run as one small archive to carry home, and `lab bundle --check FILE`: is it whole?

The archive holds RUN/BUNDLE.json and the run's regular files but checkpoints, hidden ones, links and any above LARGEST,
cleaned as records are; the same run gives the same bytes.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from pydantic import BaseModel, Field

from labkit.compare.background import going
from labkit.compare.preset import UNENDING
from labkit.errors import LabError
from labkit.record.clean import scrub
from labkit.record.files import explained, replace_file
from labkit.record.read import PACKED, RunData, read_run, runs_below

MANIFEST = "BUNDLE.json"
PAUSED = "paused"
MiB = 1 << 20
LARGEST, MOST = 64 * MiB, 1024 * MiB  # a file above this stays behind; an archive that unpacks to more is not read on
CHECKPOINTS = "checkpoints"  # labkit.train.checkpoint's folder in a run
WORDS = {".json", ".jsonl", ".txt", ".log", ".md", ".toml", ".csv"}  # cleaned line by line
PAGES = {".html", ".svg"}  # hold encoded pictures: only names and places are replaced


class Manifest(BaseModel):
    """BUNDLE.json. state: as `state` says; left_out: {what: its bytes}; files: by name, in the run's folder."""

    kind: Literal["labkit bundle"]
    version: Literal[1] = Field(alias="schema")
    name: str
    run_kind: str
    state: str
    left_out: dict[str, int]
    files: dict[str, dict[str, int | str]]


@dataclass(frozen=True)
class Bundle:
    """An archive that was read and is whole."""

    manifest: Manifest
    files: dict[str, bytes]

    @property
    def sentence(self) -> str:
        """What it holds, and what it does not."""
        size = f"{len(self.files)} files, {sum(map(len, self.files.values())) / MiB:.1f} MiB"
        text = f"{self.manifest.name}: {self.manifest.run_kind}, {size}, none missing or altered"
        if left := self.manifest.left_out:
            each = (f"{what} ({size / MiB:,.0f} MiB)" for what, size in sorted(left.items()))
            text += f"; left behind: {', '.join(each)}"
        said = self.manifest.state
        how = f". The run is {said}" if said.startswith(PAUSED) else f". But the run is not whole: {said}"
        return text + ("" if said == "whole" else how)


# ---- is a run whole?


def state(run: Path) -> str:
    """ "whole"; "paused", and how far it came; or one sentence on why this run is not whole. LabError: no run."""
    below = (file.parent.relative_to(run) for file in sorted(run.rglob("run.json")) if file.parent != run)
    places = {"the run": run} | {str(place): run / place for place in below if not _hidden(place.parts)}
    records = {name: read_run(place) for name, place in places.items()}
    for name, record in records.items():
        if record.alive:
            return f"{name} is still going on ({_progress(record)})"
    if going(run):  # detached a moment ago: it has not opened its record yet
        return "the run is still going on"
    for name, record in records.items():
        if record.status == "interrupted":
            return f"{name} was stopped or killed ({_progress(record)}); the command that started it goes on with it"
        if record.status not in ("finished", "paused"):
            return f"{name} has not finished: its status is '{record.status}'"
    paused = [_progress(record) for record in records.values() if record.status == "paused"]
    ended = ((name, record) for name, record in records.items() if record.status == "finished")
    said = f"{PAUSED} ({paused[0]}); the same command goes on with it" if paused else "whole"
    return next((f"{name} {what}" for name, record in ended for what in lacking(record)), said)


def lacking(record: RunData) -> Iterator[str]:
    """What a finished record should hold and does not. A packed one has its lines in one file, and nothing drawn."""
    packed = any(record.path.glob(f"*/*{PACKED}"))
    for file in () if packed else ("steps.jsonl", "events.jsonl"):
        if not (record.path / file).is_file():
            yield f"lacks {file}"
    if record.truncated:
        yield f"has {record.truncated} lines that cannot be read"
    if record.is_comparison:
        results, timed = record.comparison.results, runs_below(record.path / "speed")
        for arm, row in results.arms.items():
            if arm not in record.arms and row.status not in ("skipped", "failed"):
                yield f"lacks the record of its arm {arm} (arms/{arm})"
        for arm in results.timed:
            if arm not in timed:
                yield f"lacks the record of its timed arm {arm} (speed/{arm})"
        if not packed and not (record.path / "report.html").is_file():
            yield f"lacks report.html: `lab report {record.path.name}` draws it"
    (last, steps), done = _steps(record), record.training.results
    if record.run.get("kind") == "train" and steps and not done.speed and not done.stopped and last != steps:
        yield f"says that it finished, but its steps end at {last} of {steps}"


def _progress(record: RunData) -> str:
    """How far it came; a comparison has no steps of its own, only its arms have."""
    if record.is_comparison:
        files = (file for part in ("arms", "speed") for file in record.path.glob(f"{part}/*/run.json"))
        return f"{sum(read_run(file.parent).status == 'finished' for file in files)} arms finished"
    last, steps = _steps(record)
    return f"step {last}{f' of {steps}' if steps else ''}" if last else "no step yet"


def _steps(record: RunData) -> tuple[int, int | None]:
    """(the last step, how many a training was to take; None if it does not say, or a clock ends it)."""
    planned = record.training.config.steps
    return max((line.step or 0 for line in record.lines), default=0), planned if planned != UNENDING else None


# ---- packing


def pack(run: Path, out: Path | None = None, as_is: bool = False) -> tuple[Path, Bundle]:
    """Write the archive (default: RUN.tar.gz beside the folder) and return (its path, what it holds).

    LabError: no run, or none that is whole (unless `as_is`); something else than a bundle of this run is at that place.
    """
    said = state(run)
    if said != "whole" and not said.startswith(PAUSED) and not as_is:
        raise LabError(f"{run}: {said}. Wait for it or repair it, or pack what is there with --as-is")
    name = scrub(run.resolve().name)
    try:
        files, left = collect(run)
    except OSError as error:
        raise LabError(f"could not read {run}: {error.strerror or error}") from None
    about = {"kind": "labkit bundle", "schema": 1, "name": name, "run_kind": read_run(run).training.kind or "unknown"}
    listed = {key: _about(content) for key, content in files.items()}
    made = Bundle(Manifest.model_validate({**about, "state": said, "left_out": left, "files": listed}), files)
    out = out or run.resolve().parent / f"{run.resolve().name}.tar.gz"
    there = None
    with suppress(LabError):
        there = read(out).manifest.name
    if out.exists() and there != name:
        why = f"is there and is no whole bundle of {name}: move it away, or choose another name with --out"
        raise LabError(f"{out} {why}")
    with explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, _archive(made))
    return out, made


def collect(run: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """(files by name, cleaned; {what is left out: its bytes})."""
    files: dict[str, bytes] = {}
    left: dict[str, int] = {}
    for path in sorted(run.rglob("*")):
        parts = path.relative_to(run).parts
        if path.is_symlink() or not path.is_file() or _hidden(parts):
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


def _archive(bundle: Bundle) -> bytes:
    """The archive's bytes, the same for the same content: the manifest first, then the files by name."""
    buffer, head = io.BytesIO(), bundle.manifest.model_dump(by_alias=True)
    text = (json.dumps(head, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=buffer, compresslevel=9, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for key, content in [(MANIFEST, text), *sorted(bundle.files.items())]:
            info = tarfile.TarInfo(f"{bundle.manifest.name}/{key}")
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
        why = str(error) or type(error).__name__
        raise LabError(f"{file} is no bundle, or was cut off or damaged on the way ({why}): copy it again") from None
    except OSError as error:
        raise LabError(f"could not read {file}: {error.strerror or error}") from None
    return verify(file, found)


def verify(file: Path, found: dict[str, bytes]) -> Bundle:
    """The bundle that these members make; LabError naming the first thing that is wrong."""
    manifests = [name for name in found if name.count("/") == 1 and name.endswith(f"/{MANIFEST}")]
    try:
        (place,) = manifests
        head = Manifest.model_validate_json(found[place])
    except ValueError:
        raise LabError(f"{file} is no bundle: it has no {MANIFEST} that this labkit can read") from None
    name = place.partition("/")[0]
    files = {key.partition("/")[2]: content for key, content in found.items() if key != place}
    strange = [key for key in found if not key.startswith(f"{name}/")] + sorted(set(files) - set(head.files))
    if head.name != name or strange:
        raise LabError(f"{file} holds {_shown((strange or [name])[0])}, of which its manifest does not speak")
    for key, about in sorted(head.files.items()):
        if key not in files:
            raise LabError(f"{file} is not complete: {_shown(key)} is missing")
        if about != _about(files[key]):
            raise LabError(f"{file} was altered: {_shown(key)} is not what was packed")
    if "run.json" not in files:
        raise LabError(f"{file} is no bundle of a run: it holds no run.json")
    return Bundle(head, files)


def unpack(bundle: Bundle, into: Path) -> Path:
    """Write the run to `into`/NAME, all or nothing, and return that folder. LabError if it is there already."""
    target = into / bundle.manifest.name
    if target.exists():
        raise LabError(f"{target} is there already: unpack to another folder")
    with explained(target):
        into.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unpacked.", dir=into) as beside:
            whole = Path(beside) / target.name
            for key, content in bundle.files.items():
                (whole / key).parent.mkdir(parents=True, exist_ok=True)
                (whole / key).write_bytes(content)
            os.rename(whole, target)
    return target


def _plain(name: str) -> bool:
    """A relative name of plain parts, two at least."""
    parts = name.split("/")
    return len(parts) >= 2 and not {"\\", "\0"} & set(name) and all(parts) and not _hidden(parts)


def _hidden(parts: Iterable[str]) -> bool:
    return any(part.startswith(".") for part in parts)


def _about(content: bytes) -> dict[str, int | str]:
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _shown(name: str) -> str:
    return ascii(name[:80])


def command(run: Path | None, out: Path | None, check: Path | None, into: Path | None, as_is: bool) -> int:
    """What `lab bundle` does. Returns 0; 1 if a checked archive is whole but its run is not."""
    if check and not (run or out or as_is):
        bundle = read(check)
        print(bundle.sentence)
        if into:
            print(f"unpacked to {unpack(bundle, into)}")
        return 0 if bundle.manifest.state.startswith(("whole", PAUSED)) else 1
    if check or into or not run:
        raise LabError("give a run's folder to pack (--out, --as-is), or an archive to verify: --check FILE (--to)")
    path, bundle = pack(run, out, as_is)
    print(f"{path}  {path.stat().st_size / MiB:.2f} MiB")
    print(bundle.sentence)
    return 0
