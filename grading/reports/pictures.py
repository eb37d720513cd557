"""A student's own pictures: PNG outputs of their notebook and PNG files they handed in, read as data.

The notebook is JSON and is never run. Only PNG gets in, rebuilt by png.py; SVG and HTML outputs can be active, and are
left out. Whatever is wrong with a file is a sentence, never an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from grading.reports import png
from grading.reports.page import count, one_line

MOST = 12  # pictures on one page
MAX_BYTES = 1_500_000  # of one picture; a matplotlib figure has 20 to 150 kB
MAX_TOTAL = 6_000_000  # of all of them: the page is sent by mail
MAX_NOTEBOOK = 40_000_000


@dataclass(frozen=True)
class OwnPicture:
    """`data` is a clean PNG, `alt` says where it stood: nobody here knows what it shows."""

    data: bytes
    width: int
    height: int
    alt: str

    @property
    def source(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.data).decode()


def own_pictures(files: Mapping[str, bytes], notebook: str = "lab.ipynb") -> tuple[list[OwnPicture], list[str]]:
    """Pictures of a submission's files (path -> bytes), and sentences on what was left out.

    The week's notebook comes first, then other notebooks, then PNG files by name."""
    found: list[OwnPicture] = []
    left: dict[str, int] = {}
    total = 0
    for data, where in _candidates(files, notebook, left):
        cleaned = png.clean(data) if 0 < len(data) <= MAX_BYTES else None
        if cleaned is None:
            _more(left, "too large, or no whole PNG")
        elif any(cleaned[0] == other.data for other in found):
            continue
        elif len(found) == MOST or total + len(cleaned[0]) > MAX_TOTAL:
            _more(left, f"more than {MOST} pictures or {MAX_TOTAL // 10**6} MB")
        else:
            found.append(OwnPicture(*cleaned, f"Your picture {len(found) + 1}: {where}."))
            total += len(cleaned[0])
    return found, [f"{count(many, 'picture')} left out here: {why}." for why, many in left.items()]


def _candidates(files: Mapping[str, bytes], notebook: str, left: dict[str, int]):
    notebooks = sorted(
        (path for path in files if path.endswith(".ipynb")),
        key=lambda path: (PurePosixPath(path).name != notebook, path),
    )
    for path in notebooks:
        yield from _of_notebook(files[path], PurePosixPath(path).name, left)
    for path in sorted(path for path in files if path.lower().endswith(".png")):
        yield files[path], f"the file {one_line(path, 80)}"


def _of_notebook(data: bytes, name: str, left: dict[str, int]):
    try:
        cells = json.loads(data.decode("utf-8-sig"))["cells"] if len(data) <= MAX_NOTEBOOK else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # the mark's own notes tell of a broken notebook
    heading, number = "", 0
    for cell in cells if isinstance(cells, list) else ():
        if not isinstance(cell, dict):
            continue
        if cell.get("cell_type") == "markdown":
            titles = re.findall(r"^#{1,6}\s+(.+?)\s*#*$", _text(cell.get("source"))[:20_000], re.M)
            heading = one_line(titles[-1], 80) if titles else heading
        number += cell.get("cell_type") == "code"
        outputs = cell.get("outputs")
        for output in outputs if isinstance(outputs, list) else ():
            kinds = output.get("data") if isinstance(output, dict) else None
            if not isinstance(kinds, dict):
                continue
            if "image/png" in kinds:
                try:
                    picture = base64.b64decode(_text(kinds["image/png"])[: 2 * MAX_BYTES])
                except (binascii.Error, ValueError):
                    picture = b""
                yield picture, f"code cell {number} of {name}" + (f", under \u201c{heading}\u201d" if heading else "")
            elif "image/svg+xml" in kinds:
                _more(left, "SVG can hold more than a picture")


def _text(value: object) -> str:
    """nbformat's multi-line strings: one string or a list of them."""
    parts = value if isinstance(value, list) else [value]
    return "".join(part for part in parts if isinstance(part, str))


def _more(left: dict[str, int], why: str) -> None:
    left[why] = left.get(why, 0) + 1
