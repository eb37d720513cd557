"""A benchmark's record, one JSON file: what each begins with, whatever it measures, and how it is written and read."""

import json
import os
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.record import hardware
from labkit.record.clean import jsonable, typed_command
from labkit.record.files import explained, replace_file
from labkit.record.run import now, versions

VARIABLES = ("NCCL_", "TORCH_NCCL_")  # what these begin is recorded


def about(kind: str, device: str, leader: bool = True) -> dict[str, Any]:
    """What a benchmark's record says of its run, versions and machine; leader: a rank that writes nothing does not ask."""
    machine = hardware.describe() if leader else {"gpus": [], "cpu": {}}
    gpu = machine["gpus"][0]["name"] if machine["gpus"] and device == "cuda" else None
    return {
        "kind": kind,
        "started": now(),
        "command": typed_command(),
        "hardware": machine,
        "hardware_name": gpu or f"{machine['cpu'].get('model')}, {machine['cpu'].get('cores')} cores",
        "versions": versions(),
        "environment": {key: value for key, value in sorted(os.environ.items()) if key.startswith(VARIABLES)},
    }


def save(record: dict[str, Any], path: Path, indent: int | None = 1) -> None:
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(jsonable(record), indent=indent) + "\n")


def load(path: str | Path, kind: str, called: str = "benchmark record") -> dict[str, Any]:
    """Read a record. LabError if the file is missing or is none of this kind."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LabError(f"{path} is no readable benchmark record: {error}.") from None
    if not isinstance(record, dict) or record.get("kind") != kind:
        raise LabError(f'{path} is no {called}: its kind is not "{kind}".')
    return record
