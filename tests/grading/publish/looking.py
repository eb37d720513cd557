"""Reading pages as a browser and as a reader do."""

import csv
import html
import io
import re
from html.parser import HTMLParser
from itertools import pairwise

from grading.publish.table import harmless


def words(page: str) -> str:
    """What a reader sees, in one line."""
    page = re.sub(r"(?s)<style>.*?</style>", "", page)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


class Tags(HTMLParser):
    """All start tags with their attributes; of a page of ours it fails where an end tag closes nothing."""

    def __init__(self, page: str, ours: bool = True) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.attributes: list[tuple[str, str]] = []  # of all tags, one that stands twice too
        self.open: list[str] = []
        self.ours = ours
        self.feed(page)
        assert self.open == [] or not ours

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert not self.ours or (self.open and self.open.pop() == tag), f"</{tag}> closes nothing"

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.found if name == tag]


def assert_one_harmless_file(page: str) -> None:
    """One file: no script, no request, nothing active; one h1, headings in order, table heads, alt texts."""
    tags = Tags(page)
    names = {tag for tag, _ in tags.found}
    assert not names & {"script", "link", "iframe", "object", "embed", "form", "base", "svg", "video", "audio"}
    for tag, attributes in tags.found:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} {name}"
            if name in ("src", "href", "srcset", "action"):
                assert re.match(r"data:image/(png|svg\+xml);base64,|#\w+$", value), f"{tag} {name}={value[:60]}"
    assert "url(" not in page and "@import" not in page
    policy = next(a["content"] for a in tags.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert page.startswith("<!DOCTYPE html>") and '<html lang="en">' in page and "width=device-width" in page
    levels = [int(tag[1]) for tag, _ in tags.found if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels)), levels
    assert all(cell.get("scope") in ("col", "row") for cell in tags.all("th"))
    assert all(image.get("alt", "").strip() for image in tags.all("img"))
    targets = {attributes.get("id") for _, attributes in tags.found}
    assert all(link["href"][1:] in targets for link in tags.all("a"))


def original(cell):
    """A cell of an exported table without the apostrophe that keeps a spreadsheet from calculating it."""
    return cell[1:] if cell.startswith("'") and harmless(cell[1:]) != cell[1:] else cell


def read_rows(path):
    return list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=""), strict=True))


def read_table(path):
    """Lines of an exported table, by column, names as they were."""
    head, *rows = read_rows(path)
    assert all(len(row) == len(head) for row in rows)
    return [dict(zip(head, map(original, row))) for row in rows]
