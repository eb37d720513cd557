"""What the pages share: one self-contained file, no script, no request, strangers' text made harmless.

Whatever a student's code printed or a folder is called ends up in these pages. Jinja escapes it, the page forbids
scripts and requests besides, and `visible` takes away what would still deceive: terminal escapes, invisible controls,
and the characters that make text run backwards.
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from grading.files import put
from grading.here import not_the_students
from grading.intake.names import count as count
from labkit.checks.outcome import number
from labkit.errors import LabError

HERE = Path(__file__).parent
PUBLISHED, FEEDBACK = "published", "feedback"  # folders: the class's published/WEEK/feedback/STUDENT
SHOWN_TEXT = 4000  # characters of one diagnosis; the longest of week 13 is an autopsy of 1,300
SHOWN_LINES = 60
DASH = "\u2013"

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])?")
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if code not in (9, 10)} | {127: "\u2421"}
_BACKWARDS = {code: f"\u27e8U+{code:04X}\u27e9" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_ELSEWHERE = re.compile(r"(?<![\w.])/(?:[^\s/:'\"<>]{1,255}/){1,40}((?:(?:week\d|capstone)\w*|labkit|site-packages)/)")


def visible(text: str, chars: int = SHOWN_TEXT, lines: int = SHOWN_LINES) -> str:
    """Text for people, at most so long: no terminal escapes, controls and reordering marks as visible signs, halves of
    surrogate pairs as \\udc80. Names and accents of all scripts stay as they are."""
    text = text[: 20 * chars].replace("\r\n", "\n").replace("\r", "\n")
    text = _ESCAPES.sub("", text).translate(_CONTROLS).translate(_BACKWARDS)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    rows = text.split("\n")
    kept = "\n".join(rows[:lines])
    if len(rows) > lines or len(kept) > chars:
        left = len(text) - len(kept[:chars])
        return f"{kept[:chars].rstrip()}\n... ({left:,} more characters)"
    return kept


def one_line(text: str, chars: int = 200) -> str:
    """The first line that says something."""
    line = next((row.strip() for row in visible(text, 4 * chars).split("\n") if row.strip()), "")
    return line if len(line) <= chars else line[: chars - 3].rstrip() + "..."


def folder_name(text: str) -> str:
    """A student's key as the name of one folder; "." and ".." stay harmless. Letters and digits of all scripts stay as
    they are, so that a person can read it; everything else but a few signs is percent-quoted."""
    name = "".join(c if unicodedata.category(c)[0] in "LMN" else quote(c, safe=" @+,=~.-_") for c in text)
    return name if name.strip(". ") else name.replace(".", "%2E").replace(" ", "%20")


def here(text: str) -> str:
    """A diagnosis without the folder of the machine that graded: /any/where/week13_x/a.py:3 -> week13_x/a.py:3."""
    return _ELSEWHERE.sub(r"\1", text)


def of(points: float | None, possible: float) -> str:
    """ "12.5 of 15"; for points not given yet a dash "of 20"."""
    return f"{DASH if points is None else number(points)} of {number(possible)}"


def join(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    words = list(words)
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def render(template: str, **fields: Any) -> str:
    """A page from one of this folder's templates, in the style of the run reports."""
    environment, css = _templates()
    return environment.get_template(template).render(css=css, **fields)


@lru_cache(maxsize=1)
def _templates() -> tuple[Any, str]:
    """jinja2's environment, which keeps a template compiled, and the style sheet."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    import labkit.compare

    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=number, visible=visible, line=one_line, joined=join)
    environment.globals.update(of=of, count=count)
    style = (Path(labkit.compare.__file__).with_name("report.css"), HERE / "page.css")
    return environment, "\n".join(path.read_text(encoding="utf-8") for path in style)


def write(path: Path, text: str, *, bom: bool = False) -> Path:
    """Put a text in its place, whole: a reader sees the old one or the new one, also after a kill. Line ends stay as
    they are. LabError if it cannot be written, or where students would read it."""
    not_the_students(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # 640: marks are nobody else's business.
        put(path, text.encode("utf-8-sig" if bom else "utf-8", "backslashreplace"), 0o640)
    except OSError as error:
        raise LabError(f"{path} cannot be written ({error.strerror or error}): choose another place") from None
    return path
