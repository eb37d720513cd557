"""A finished run in one file: NAME.jsonl.gz stands where the folder NAME stood, and `read_run` reads either.

    first line     {"run": what run.json held, "events": [the lines of events.jsonl]}
    other lines    steps.jsonl as it was written

A comparison keeps its folder and run.json; each of its arms becomes a file. figures/ and report.html go.
"""

import gzip
import json
import shutil
from pathlib import Path

from labkit.errors import LabError
from labkit.record.files import explained, replace_file
from labkit.record.read import PACKED, is_alive, load_run, parse

LINES, DRAWN = ("steps.jsonl", "events.jsonl"), ("report.html", "figures")


def pack(folder: Path) -> int:
    """Pack every run in `folder`, itself included; return how many became a file. LabError: none, or one that goes on."""
    # A comparison after its arms.
    runs = sorted((file.parent for file in folder.rglob("run.json")), key=lambda run: -len(run.parts))
    if not runs:
        raise LabError(f"there is no run in {folder}")
    single = [run for run in runs if load_run(run).get("kind") != "compare"]
    for run in runs:
        if is_alive(run):
            raise LabError(f"{run} is still going on: pack it when it has finished")
        strange = {file.name for file in run.iterdir()} - {"run.json", *LINES, *DRAWN}
        if run in single and strange:
            raise LabError(f"{run} holds {min(strange)}, which a packed run has no place for: move it away first")
    for run in runs:
        with explained(run):
            if run in single:
                replace_file(run.with_name(run.name + PACKED), packed(run))
                shutil.rmtree(run)
                continue
            shutil.rmtree(run / "figures", ignore_errors=True)
            (run / "report.html").unlink(missing_ok=True)
            for name in LINES:  # a comparison has none of its own
                if (run / name).exists() and not (run / name).stat().st_size:
                    (run / name).unlink()
    return len(single)


def packed(run: Path) -> bytes:
    steps, events = ((run / name).read_bytes() if (run / name).exists() else b"" for name in LINES)
    head = {
        "run": json.loads((run / "run.json").read_bytes()),
        "events": [event for line in events.splitlines() if (event := parse(line)) is not None],
    }
    return gzip.compress(json.dumps(head, ensure_ascii=False).encode() + b"\n" + steps, 9, mtime=0)
