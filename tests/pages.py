"""Reading pages: links, anchors, and the commands that a reader would type."""

import functools
import html
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
BEGIN = r"(?:^ *(?:[A-Z_]+=\S* +)*(?:\.venv/bin/)?|\$\()"  # of a command; a word like it may stand in an explanation
TYPED = re.compile(rf"(?:{BEGIN}(?P<tool>lab|grade)|-m labkit) +(?P<word>[a-z][\w-]*)(?P<rest>.*)")
MADE = re.compile(rf"{BEGIN}make +(?:[A-Z_]+=\S+ +)*(?P<target>[a-z][\w-]*)")


def pages(root: Path) -> list[Path]:
    """The course's Markdown: what git knows, and what is new; in a tree without git, all."""
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard", "--", "*.md"], capture_output=True, text=True
    )
    if (root / ".git").exists() and not listed.returncode:
        return sorted({root / line for line in listed.stdout.splitlines() if (root / line).exists()})
    return sorted(
        page for page in root.rglob("*.md") if not any(part[0] == "." for part in page.parts[len(root.parts) :])
    )


def links(page: Path) -> Iterator[tuple[str, str]]:
    """(relative path, anchor) of every link and picture that does not leave the course."""
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    for link in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'<(?:img|a) [^>]*?(?:src|href)="([^"]+)"', text):
        if not re.match(r"[a-z]+:", link):
            target, _, anchor = link.partition("#")
            yield target, anchor


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = (re.sub(r"`|\*", "", line) for line in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def prose(page: Path) -> str:
    """What a reader reads: without comments, alt texts, addresses and rules of tables."""
    text = re.sub(r"<!--.*?-->|<img [^>]*>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"\|[ :-]*(?=\|)|\|", " ", text))


def words(page: Path) -> int:
    """How many words a reader sees before opening a fold."""
    return len(re.sub(r"<details>.*?</details>", "", prose(page), flags=re.DOTALL).split())


def typed(page: Path) -> Iterator[str]:
    """Lines of code: indented blocks, fences, and spans. Of a line, what stands before its comment or explanation."""
    text = page.read_text(encoding="utf-8")
    for fence in FENCE.findall(text):
        yield from fence.splitlines()[1:-1]
    rest = FENCE.sub("", text)
    yield from re.findall(r"^ {4}(\S.*)$", rest, re.MULTILINE)
    yield from (html.unescape(span.replace("\n", " ")) for span in re.findall(r"`([^`]+)`", rest))


@functools.cache
def tools() -> dict:
    import typer

    from labkit.cli import app as lab

    try:
        from grading.cli import app as grade
    except ImportError:  # students have none
        return {"lab": typer.main.get_command(lab)}
    return {"lab": typer.main.get_command(lab), "grade": typer.main.get_command(grade)}


def commands(page: Path, root: Path) -> set[str]:
    """What the page would have a reader type and is not there: "lab X", "lab X --option", "make X"."""
    makefile, unknown = (root / "Makefile").read_text(), set()
    for line in typed(page):
        for part in re.split(r"\s+#|&&|;| {3,}", line):
            if (made := MADE.match(part)) and not re.search(
                rf"^(?:[\w-]+ )*{made['target']}(?: [\w-]+)*:", makefile, re.MULTILINE
            ):
                unknown.add(f"make {made['target']}")
            for found in TYPED.finditer(part):
                unknown |= _unknown(found["tool"] or "lab", found["word"], found["rest"])
    return unknown


def _unknown(tool: str, word: str, rest: str) -> set[str]:
    if tool not in tools():
        return {tool}
    typed, command = f"{tool} {word}", tools()[tool].commands.get(word)
    if command is None:
        return {typed}
    rest = re.split(r"`|\$\(", rest)[0]
    if below := getattr(command, "commands", None):
        if not (words := re.findall(r"^ +([a-z][\w-]*)", rest)):
            return set()
        typed, command = f"{typed} {words[0]}", below.get(words[0])
        if command is None:
            return {typed}
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    if command.context_settings.get("ignore_unknown_options"):
        return set()  # `lab bench`: a week's own command has these options
    return {f"{typed} {option}" for option in re.findall(r"(?<=\s)(--[a-z][\w-]*)", rest) if option not in known}
