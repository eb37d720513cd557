"""`make site`: the course's pages as one site of plain files, in build/site.

What stands on it is the student tree, as `grade release` makes it, so no solution can; the public pages for instructors
and renters; and the pages in site/pages, whose blanks are filled from records (facts.py). Sphinx (conf.py) makes HTML
of them. Links to files that are not on the site become plain words; the rest is checked by Sphinx.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jinja2

HERE = Path(__file__).resolve().parent
COURSE = HERE.parent
sys.path[:0] = [str(COURSE), str(HERE)]  # the course's own packages, and the files beside this one

from grading.tree import student_tree  # noqa: E402
from labkit.checks.tasks import find_weeks  # noqa: E402

# What is shown where. A path is the repository's; those without a folder of it stand in site/pages.
NAV = {
    "Start": ["docs/students.md", "autopsy.md", "chunk-grid.md", "docs/glossary.md"],
    "Labs": ["syllabus.md", "docs/how-labs-work.md", "{weeks}"],
    "Guides": ["PARALLELISM_GUIDE.md", "plan-explorer.md", "docs/watching.md"],
    "Is FP8 worth it?": ["fp8.md", "docs/renters.md", "docs/renting-details.md"],
    "Results": ["results-explorer.md", "docs/verdict.md", "results/README.md", "gallery.md", "sample.md"],
    "Teach": [
        "teach.md",
        "docs/instructors.md",
        "docs/instructors-rare.md",
        "AGENTS.md",
        "grading/README.md",
        "grading/THREAT_MODEL.md",
        "grading/PRIVACY.md",
    ],
    "Reference": ["lab.md", "grade.md", "configuration.md", "docs/fp8-settings.md", "api/index.md"],
    "Project": ["limits.md", "CONTRIBUTING.md", "CHANGELOG.md", "cite.md"],
}
# Pages that are not released to students, and are no secret.
PUBLIC = ("CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md", "grading/*.md")
HIDDEN = ("docs/what-a-check-must-try.md", "docs/images/README.md")  # what the checks draw and try
HOME = "README.md"  # becomes part of index.md
SAMPLE = "sample.md"  # only where `make demo` has run

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\]\([^)]*\))*)\]\((?P<to>[^)\s]+)\)")
_FOLD = re.compile(r"<details>\s*<summary>(.*?)</summary>\n(.*?)</details>", re.DOTALL)
_FENCE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(_FENCE.pattern + r"|<!--.*?-->\n?", _FENCE.flags)  # what quotes one stays
ANSWERS = re.compile(r"^(week\d+\w*|capstone)/results/.*\.md$")  # pages that answer a week's predictions


def sources() -> dict[str, bytes]:
    """Every file that Sphinx may read, by path: the student tree and the public pages."""
    files = {path: file.data for path, file in student_tree(COURSE, find_weeks(COURSE)).files.items()}
    for pattern in PUBLIC:
        for path in COURSE.glob(pattern):
            name = path.relative_to(COURSE).as_posix()
            if name not in HIDDEN:
                files.setdefault(name, path.read_bytes())
    files[HOME] = (COURSE / HOME).read_bytes()  # with every reader's door
    for path in (COURSE / "docs" / "images").iterdir():
        if path.suffix in (".png", ".svg"):
            files.setdefault(path.relative_to(COURSE).as_posix(), path.read_bytes())
    return files


def linked(text: str, name: str, pages: set[str], files: set[str]) -> str:
    """The text with links that hold on the site: README.md is the home page, and what is not here becomes words."""

    def target(to: str) -> str | None:
        path, _, anchor = to.partition("#")
        if re.match(r"[a-z]+:", to) or not path:
            return to
        there = os.path.normpath(Path(name).parent / path)
        there = "index.md" if there == HOME else there
        if there not in pages and not (there in files and there.endswith((".png", ".svg"))):
            return None
        return os.path.relpath(there, Path(name).parent) + (f"#{anchor}" if anchor else "")

    def link(found: re.Match) -> str:
        words = found["text"] if found["image"] else _LINK.sub(link, found["text"])
        to = target(found["to"])
        return words if to is None else f"{found['image']}[{words}]({to})"

    parts = _FENCE.split(text)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def page(text: str, name: str, pages: set[str], files: set[str]) -> str:
    """A Markdown page as the site has it. Pages that answer predictions are folded, and nothing of them is searched."""
    text = linked(_COMMENT.sub(r"\1", text), name, pages, files)
    text = _FOLD.sub(lambda found: fold(found[1], found[2]), text)
    return ("---\nno-search: true\nfold: true\n---\n" if ANSWERS.match(name) else "") + text


def fold(summary: str, body: str) -> str:
    """A fold whose words are not in the search's index: it answers a prediction."""
    return f"\n::::::{{dropdown}} {summary.strip()}\n:class-container: no-search\n\n{body.strip()}\n::::::\n"


def notebook(data: bytes, name: str, pages: set[str], files: set[str]) -> bytes:
    book = json.loads(data)
    for cell in book["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = page("".join(cell["source"]), name, pages, files)
    return json.dumps(book).encode()


def toctree(entries: list[str], caption: str = "", depth: int = 1) -> str:
    options = [":hidden:", ":titlesonly:", f":maxdepth: {depth}", *([f":caption: {caption}"] if caption else [])]
    return "\n".join(["", "```{toctree}", *options, "", *entries, "```", ""])


def own_pages() -> Iterator[tuple[str, str]]:
    """(name, text) of the pages of site/pages, their blanks filled, and of what is made of the code."""
    import facts

    from studies.verdict import show
    from week16_fp8.given import findings, renting

    room = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "pages"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    room.globals.update(vars(findings) | vars(renting) | vars(show) | vars(facts))
    for path in sorted((HERE / "pages").glob("*.md.j2")):
        if path.stem != SAMPLE or facts.samples():
            yield path.stem, room.get_template(path.name).render()
    yield from facts.reference()


def write(source: Path) -> None:
    """Put everything that Sphinx reads into a folder."""
    files, own = sources(), dict(own_pages())
    weeks = [f"{week.package}/README.md" for week in find_weeks(COURSE)]
    skip = ("labkit/",)
    pages = {name for name in files if name.endswith((".md", ".ipynb")) and not name.startswith(skip)} - {HOME}
    pages |= set(own)
    shown = {
        caption: [
            one for name in names for one in (weeks if name == "{weeks}" else [name]) if one != SAMPLE or one in own
        ]
        for caption, names in NAV.items()
    }
    below = {week: list(_below(week, pages)) for week in weeks}
    placed = {name for names in shown.values() for name in names} | {
        name for each in below.values() for _, name in each
    }
    for name, data in files.items():
        if name.endswith(".ipynb"):
            data = notebook(data, name, pages, set(files))
        elif name in pages or name == HOME:
            text = page(data.decode(), name, pages, set(files))
            if name in below:
                text += toctree([f"{title} <{os.path.relpath(one, Path(name).parent)}>" for title, one in below[name]])
            data = text.encode()
            if name in pages - placed:
                data = (
                    f"---\norphan: true\n{text[4:]}" if text.startswith("---") else f"---\norphan: true\n---\n{text}"
                ).encode()
        _put(source / name, data)
    home = source / HOME
    _put(source / "home.inc", home.read_text().partition("\n# ")[2].partition("\n")[2].encode())  # below its title
    home.unlink()
    own["index.md"] += "".join(toctree(names, caption, 2) for caption, names in shown.items())
    for name, text in own.items():
        _put(source / name, linked(text, name, pages, set(files)).encode())


def _below(week: str, pages: set[str]) -> Iterator[tuple[str, str]]:
    folder = week.removesuffix("/README.md")
    for title, name in (
        ("The notebook", "lab.ipynb"),
        ("Results", "results/README.md"),
        ("Findings", "results/FINDINGS.md"),
    ):
        if f"{folder}/{name}" in pages:
            yield title, f"{folder}/{name}"


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def build(out: Path) -> int:
    """Make the site; Sphinx's status. A warning is an error."""
    import facts

    source = out.with_name(f"{out.name}-source")
    for folder in (source, out):
        shutil.rmtree(folder, ignore_errors=True)
    write(source)
    words = ["-q", "-W", "--keep-going", "-c", str(HERE), "-d", str(source / ".doctrees"), str(source), str(out)]
    # In the released tree, whose labkit the API is read from.
    status = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=source).returncode
    if not status:
        facts.sample(COURSE / "runs", out / "sample")
        shutil.rmtree(source)
    return status


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1] if len(sys.argv) > 1 else COURSE / "build" / "site").resolve()))
