"""`make site`: built once from the student tree, and every page of it looked at in a browser. Needs requirements-site.lock."""

import ast
import html
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

from labkit.checks.tasks import find_weeks
from labkit.compare.repeats import interval
from tests.browser import browser, chromium
from tests.grading.test_student_tree import COMMON, LONG, solution_lines, squeezed

pytest.importorskip("sphinx", reason="requirements-site.lock is not installed: make site")
ROOT = Path(__file__).parents[1]
SITE = ROOT / "site"
FOLD = re.compile(r"<details>.*?</details>", re.DOTALL)
ANSWERS = {f"{week.package}/results/README" for week in find_weeks(ROOT)}


def module(name, monkeypatch):
    """A file of site/, which is no package: the standard library has a module of that name."""
    monkeypatch.syspath_prepend(str(SITE))
    return __import__(name)


def test_links_to_what_is_not_on_the_site_become_words(monkeypatch):
    build = module("build", monkeypatch)
    pages, files = {"docs/a.md", "index.md"}, {"docs/a.md", "docs/a.png", "labkit/cli.py"}
    text = (
        "[code](../labkit/cli.py), [home](../README.md#x), ![picture](a.png), `[no](link.md)`, [out](https://a.org/b)"
    )
    said = build.linked(text, "docs/b.md", pages, files)
    assert said == "code, [home](../index.md#x), ![picture](a.png), `[no](link.md)`, [out](https://a.org/b)"


def test_what_answers_a_prediction_is_folded_and_not_searched(monkeypatch):
    build = module("build", monkeypatch)
    answer = "Before.\n<details><summary>After your run</summary>\n\n62 ms.\n\n</details>\n"
    folded = build.page(answer, "week13_allreduce/lab.ipynb", set(), set())
    assert folded.index("dropdown} After your run") < folded.index("no-search") < folded.index("62 ms")
    assert build.page("<!-- a `b` -->\nIn `<!-- -->`.", "a.md", set(), set()) == "In `<!-- -->`."
    page = build.page("# Results\n", "week13_allreduce/results/README.md", set(), set())
    assert page.startswith("---\nno-search: true\nfold: true\n")
    assert not build.page("# All-reduce\n", "week13_allreduce/README.md", set(), set()).startswith("---")


def test_tables_of_commands_keep_their_bars(monkeypatch):
    tables = dict(module("facts", monkeypatch).reference())
    for row in re.findall(r"^\|.*", tables["lab.md"] + tables["grade.md"], re.MULTILINE):
        assert len(re.findall(r"(?<!\\)\|", row)) == 3, row
    assert "[time TIME \\| withdraw" in tables["grade.md"]


def test_the_fp8_page_says_what_the_page_for_renters_says(monkeypatch):
    cards, page = module("facts", monkeypatch).cards(), (ROOT / "docs" / "renters.md").read_text(encoding="utf-8")
    for card in cards:
        for arm in card["arms"]:
            assert interval(arm.gap, arm.low, arm.high) in page and f" {arm.times:.2f} |" in page
            assert arm.further is None, "one speed at equal loss, that of all repeated runs"
    assert all(cards[0]["equal"][arm.name][-1] in page for arm in cards[0]["arms"])


def test_every_docstring_of_labkit_parses(monkeypatch):
    from docutils.core import publish_doctree

    conf, seen = module("conf", monkeypatch), 0
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    quiet = {"report_level": 2, "halt_level": 5, "warning_stream": io.StringIO()}
    for path in sorted((ROOT / "labkit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds) and (said := ast.get_docstring(node)) and not said.isalnum():
                seen += 1
                tree = publish_doctree("\n".join(conf.restructured(said.split("\n"))), settings_overrides=quiet)
                wrong = [one.astext() for one in tree.findall() if one.tagname in ("system_message", "problematic")]
                assert not wrong, f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'the module')}: {wrong[0]}"
    assert seen > 1000


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("built") / "site"
    done = subprocess.run(
        [sys.executable, SITE / "build.py", out], cwd=ROOT, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return out


def pages(site):
    return [path for path in sorted(site.rglob("*.html")) if not {"_static", "sample"} & set(path.parts)]


@pytest.mark.thorough
@pytest.mark.timeout(1300)
def test_the_site_loads_nothing_from_outside(site):
    assert len(pages(site)) > 40
    loads = r'<(?:script|img|link|iframe|source)\b[^>]*?(?:src|href)="(?:https?:)?//[^"]*"|@import ["\'](?:https?:)?//|url\(["\']?(?:https?:)?//'
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css"):
            assert not re.findall(loads, path.read_text(encoding="utf-8")), path


@pytest.mark.thorough
def test_no_line_of_a_solution_stands_on_the_site(site):
    where: dict[str, set[str]] = {}
    for path in pages(site):
        text = html.unescape(re.sub(r"<[^>]+>", "", path.read_text(encoding="utf-8")))
        for line in text.splitlines():
            where.setdefault(squeezed(line), set()).add(path.name)
    common = {squeezed(line) for line in COMMON}
    for name, task, line, kept in solution_lines():
        line = squeezed(line)
        if len(line) >= LONG and line not in common | kept:
            assert line not in where, f"{task}: {line} of {name} is in {where[line]}"


@pytest.mark.thorough
def test_answers_are_not_in_the_search(site):
    from sphinx.search.en import SearchEnglish

    index = json.loads((site / "searchindex.js").read_text()[len("Search.setIndex(") : -1])
    words: dict[str, set[str]] = {name: set() for name in index["docnames"]}
    for kind in ("terms", "titleterms"):
        for word, documents in index[kind].items():
            for number in documents if isinstance(documents, list) else [documents]:
                words[index["docnames"][number]].add(word)
    assert words["week13_allreduce/README"] and all(not words[name] for name in ANSWERS)
    stem = SearchEnglish({}).stem
    for week in find_weeks(ROOT):
        cells = json.loads(week.notebook.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
        folds, open_ = re.findall(FOLD, text), re.sub(FOLD, "", text)
        said, folded = ({stem(word) for word in re.findall(r"\w+", part.lower())} for part in (open_, " ".join(folds)))
        alone = {word for word in folded - said if len(word) > 3}
        assert len(alone) > 20 and not alone & words[f"{week.package}/lab"], week.name


@pytest.mark.thorough
def test_links_and_anchors_of_the_site_hold(site):
    ids: dict[Path, set[str]] = {}
    assert ("sample.html" in (site / "index.html").read_text()) == (site / "sample").is_dir()
    for path in pages(site):
        for link in re.findall(r'<a\b[^>]*?href="([^"]+)"', path.read_text(encoding="utf-8")):
            target, _, anchor = unquote(html.unescape(link)).partition("#")
            if re.match(r"https?:|mailto:", target):
                continue
            there = Path(os.path.normpath(path.parent / target)) if target else path
            assert there.is_file() and there.is_relative_to(site), f"{path.relative_to(site)}: {link}"
            if anchor and there.suffix == ".html":
                known = ids.setdefault(there, set(re.findall(r'\bid="([^"]+)"', there.read_text(encoding="utf-8"))))
                assert anchor in known, f"{path.relative_to(site)}: {link}"


FAINT = """(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0.9) return c; } return [255, 255, 255]; };
  const found = new Set();
  for (const e of document.querySelectorAll("article *, nav *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility({checkOpacity: true})) continue;
    const style = getComputedStyle(e), [a, b] = [light(parse(style.color)), light(behind(e))].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.5 && style.fontWeight >= 700);
    if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5)) found.add(`${e.tagName}.${e.className} ${style.color}`);
  }
  return [...found].slice(0, 5); })()"""

CUT = "[...document.querySelectorAll('.highlight-none pre')].filter((one) => one.scrollWidth > one.clientWidth).length"


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.skipif(chromium() is None, reason="no Chromium")
def test_every_page_at_two_widths(site, tmp_path):
    """No sideways scroll, no error, no picture without words, and enough contrast."""
    with browser(tmp_path / "profile") as tab:
        page = tab()
        for path in pages(site):
            name = path.relative_to(site).as_posix()
            page.call("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
            page.open(path.as_uri())
            assert page.js("[...document.images].every((one) => one.alt.trim() && one.naturalWidth)"), name
            for theme in ("dark", "light"):
                page.js(f"document.documentElement.dataset.theme = '{theme}'")
                assert page.js(FAINT) == [], f"{name}, {theme}"
            assert page.js(CUT) == 0, name
            for width in (1200, 400):
                page.call(
                    "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
                )
                assert page.js("document.documentElement.scrollWidth <= innerWidth"), f"{name} at {width}"
            assert not page.errors, f"{name}: {page.errors}"


@pytest.mark.thorough
@pytest.mark.skipif(chromium() is None, reason="no Chromium")
def test_the_explorer_narrows_its_rows(site, tmp_path):
    with browser(tmp_path / "profile") as tab:
        page = tab()
        page.open((site / "plan-explorer.html").as_uri())
        every = page.js("document.querySelectorAll('table.explorer tbody tr').length")
        page.js(
            "(() => { const menu = document.querySelector('.explorer-menus select'); menu.value = '70B';"
            " menu.dispatchEvent(new Event('change')); })()"
        )
        shown = page.js(
            "[...document.querySelectorAll('table.explorer tbody tr')].filter((row) => !row.hidden)"
            ".map((row) => row.cells[0].textContent)"
        )
        assert 0 < len(shown) < every and set(shown) == {"70B"}
        assert page.text(".explorer-count") == f"{len(shown)} of {every} rows"
