"""Names that strangers chose: which paths are harmless, which are not worth reading, and how they are shown.

Names are a student's to choose, in part: they are read and shown, and never used as a path.
"""

import re
import unicodedata
from collections.abc import Sequence

from labkit.checks.tasks import Week

PACKED = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".7z", ".rar")  # how archives end
MAX_DEPTH = 12
MAX_PATH = 1000  # bytes
_PART = re.compile(r"week[\s_-]*0*(\d+)|capstone")
_DRIVE = re.compile(r"[A-Za-z]:")
# What systems and tools leave about and nobody made, some of it under hidden names.
LEFT_ABOUT = frozenset({"__MACOSX", "__pycache__", "node_modules", ".DS_Store", ".ipynb_checkpoints", ".git", ".nfs"})
_NOISE = frozenset({"__MACOSX", "__pycache__", "node_modules", "site-packages", "Thumbs.db", "desktop.ini"})
_CUT = re.compile(r"""[\x00-\x1f\x7f&<>"`|':\\/]|\.\.+""")


def in_moodles_files(name: str) -> str:
    """What Moodle leaves of a name in a file's: "Kate OBrien" of "Kate O'Brien" (clean_filename, PARAM_FILE)."""
    return _CUT.sub("", clean(name).replace("_", " ")).strip()


def same_letters(name: str, other: str) -> bool:
    """Whether two names are one but for signs and blanks, which platforms drop, and for the order of "Doe, Jane"."""
    return letters(name) in forms(other)


def forms(name: str) -> tuple[str, ...]:
    """The letters of a name as it stands and the other way round: "Jane Doe" of "Doe, Jane"."""
    last, comma, first = name.partition(",")
    return (letters(name), letters(f"{first} {last}")) if comma else (letters(name),)


def letters(name: str) -> str:
    """The letters, marks and digits of a name, composed and in small letters: what is left of it in a platform's file
    names, whichever signs that platform drops."""
    text = unicodedata.normalize("NFC", clean(name).casefold())
    return "".join(c for c in text if unicodedata.category(c)[0] in "LMN")


def clean(name: str) -> str:
    """A name off a disk or out of an archive as text: composed (NFC), and what is not UTF-8 written as \\xed\\xb3\\xa9."""
    text = name.encode("utf-8", "surrogatepass")
    return unicodedata.normalize("NFC", text.decode("utf-8", "backslashreplace"))


def shown(name: str, limit: int = 120) -> str:
    """A foreign name for a sentence: no control or direction character acts, and it is not endless."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in clean(name))
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-limit // 3 :]}"


def printable(text: str) -> str:
    """Any text for a terminal: lines stay lines, and no other control or direction character acts."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape", "replace").decode() for c in text)


def some(names: Sequence[str], most: int = 5) -> str:
    """A few foreign names for a sentence, and how many there are more. Semicolons stand between "Last, First"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ("; " if any("," in name for name in names) else ", ").join(shown(name) for name in names[:most]) + more


def harmless(name: str) -> str | None:
    """None if "a/b.py" stays inside the folder it is unpacked to, on any system; else why not, as a sentence's end."""
    parts = name.split("/")
    if name.startswith("/") or _DRIVE.match(name) or ".." in parts:
        return "leads out of the folder it is in"
    if "\0" in name or any(part in ("", ".") for part in parts):
        return "has a name that is no file's"
    sizes = [len(part.encode("utf-8", "surrogatepass")) for part in (*parts, name)]
    if sizes.pop() > MAX_PATH or max(sizes) > 255:
        return "has a name that is too long"
    if len(parts) > MAX_DEPTH:
        return f"lies more than {MAX_DEPTH} folders deep"
    return None


def is_notebook(name: str) -> bool:
    """Whether a path is called as a notebook is, or as browsers call one that they save: lab.ipynb.json."""
    return name.lower().endswith((".ipynb", ".ipynb.json", ".ipynb.txt"))


def noise(name: str) -> bool:
    """Whether a path is what systems and tools leave about: caches, hidden files, editors' copies."""
    return any(
        part in _NOISE or part.endswith("~") or (part.startswith(".") and part not in (".", ".."))
        for part in name.split("/")
    )


def other_week(folder: str, week: Week) -> bool:
    """Whether a folder (or an inner archive) is called after another part of the course: "week14_mine" is, for week 13;
    "week13", "week13_final" and "my work" are not."""
    found, own = _PART.match(folder.lower()), _PART.match(week.package)
    return found is not None and (own is None or found[1] != own[1])


def count(many: float, one: str, more: str = "") -> str:
    """ "1 student", "3 students"."""
    return f"{many:,} {one if many == 1 else more or one + 's'}"
