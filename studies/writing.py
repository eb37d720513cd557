"""How the studies write their records."""

import json
from typing import Any

from labkit.record import hardware
from labkit.record.clean import jsonable
from labkit.record.run import now, versions


def about(kind: str, command: str) -> dict[str, Any]:
    """What a study's record begins with."""
    return {"kind": kind, "command": command, "date": now(), "hardware": hardware.describe(), "versions": versions()}


def as_lines(record: dict[str, Any]) -> str:
    """JSON with a line for each key, and one for each item of a list: a change shows as the lines it is."""
    lines = []
    for key, value in jsonable(record).items():
        rows = ",\n  ".join(map(json.dumps, value)) if isinstance(value, list) else ""
        lines.append(f' "{key}": ' + (f"[\n  {rows}\n ]" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(lines) + "\n}\n"
