"""Links, anchors, pictures, commands and options of every page are there, and what a page shows happens."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.pages import anchors, commands, links, pages, words

ROOT = Path(__file__).parents[1]
PAGES = pages(ROOT)
WORDS = {  # of a page, within a fifth, before any fold is opened
    "README.md": 500,
    "CHANGELOG.md": 400,
    "CONTRIBUTING.md": 800,
    "PARALLELISM_GUIDE.md": 1900,
    **{f"{week}/README.md": 350 for week in ("week13_allreduce", "week14_fsdp", "week15_tp_attention", "week16_fp8")},
    "capstone/README.md": 600,
    "week13_allreduce/results/FINDINGS.md": 1200,
    "week16_fp8/results/FINDINGS.md": 1200,
    "grading/README.md": 1500,
    "grading/THREAT_MODEL.md": 900,
    "results/README.md": 200,
}
DOCS = {"students": 600, "how-labs-work": 600, "glossary": 500, "instructors": 900, "instructors-rare": 1500}
DOCS |= {"verdict": 900, "renters": 800, "renting-details": 1500, "watching": 500, "fp8-settings": 900}
WORDS |= {f"docs/{page}.md": length for page, length in DOCS.items()}


def name(path):
    return path.relative_to(ROOT).as_posix()


def test_all_pages_are_under_test():
    rest = {"docs/images/README.md", "grading/PRIVACY.md", "grading/student/AGENTS.md"}
    assert {name(page) for page in PAGES} >= WORDS.keys() | rest


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_and_pictures_are_there(page):
    for target, anchor in links(page):
        there = (page.parent / target).resolve() if target else page
        assert there.exists() and there.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_their_options_exist(page):
    unknown = commands(page, ROOT)
    assert not unknown, sorted(unknown)


def test_a_command_that_is_not_there_is_found(tmp_path):
    """The check itself: one wrong page, every fault in it found."""
    page = tmp_path / "page.md"
    page.write_text(
        "`lab comapre` and `lab compare --bugdet-minutes 3`, `grade relaese week13`.\n"
        "`make tset`\n\n"
        "    lab check 13.4 --all          my lab has make-up and is gradeable\n"
        "    lab check 13.4 --everything\n    make demo && grade run --jbos 2\n"
        "    python -m labkit scalling\n\n[gone](gone.md), ![a picture](gone.png), [here](#no-such-place)\n"
    )
    assert commands(page, ROOT) == {
        "lab comapre",
        "lab compare --bugdet-minutes",
        "grade relaese",
        "make tset",
        "lab check --everything",
        "grade run --jbos",
        "lab scalling",
    }
    assert set(links(page)) == {("gone.md", ""), ("gone.png", ""), ("", "no-such-place")} and not anchors(page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_picture_has_an_alt_text_and_is_small(page):
    text = page.read_text(encoding="utf-8")
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", text):
        assert len(alt.split()) >= 5, target
        assert (page.parent / target).stat().st_size < 60_000, target
    for tag in re.findall(r"<img [^>]*>", text):
        assert re.search(r'alt="\w[^"]{20,}"', tag), tag


@pytest.mark.parametrize("page", WORDS)
def test_a_page_has_its_length(page):
    assert words(ROOT / page) == pytest.approx(WORDS[page], rel=0.2)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{who}.md" for who in ("students", "instructors", "renters"))])
def test_commands_of_a_door_fit_on_a_screen(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert max(len(line) for line in text.splitlines() if line.startswith("    ")) <= 92


def test_a_release_is_added_changed_and_fixed():
    for release in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        heads = re.findall(r"^### (.*)", release, re.MULTILINE)
        assert set(heads) <= {"Added", "Changed", "Fixed"}, release.splitlines()[0]


def test_the_glossary_stays_short():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\| (.+?) \| .+ \|$", text, re.MULTILINE)[2:]
    assert len(entries) <= 40 and entries == sorted(entries, key=str.lower)


def test_the_first_experiment_prints_what_it_says_and_fails_as_it_says(tmp_path):
    text = (ROOT / "docs" / "students.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.S)[1]
    said, autopsy = re.search(r"four times (tensor\(.*?\))", code)[1], re.search(r"```text\n(.*?)```", text, re.S)[1]
    early = re.search(r"`(if group\.rank == 2: return)`", text)[1]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def python(source):
        (tmp_path / "hello.py").write_text(source)
        words = [sys.executable, "hello.py"]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, env=env)

    done = python(code)
    assert done.stdout.count(said) == 4, done.stdout + done.stderr
    done = python(code.replace("def hello(group):\n", f"def hello(group):\n    {early}\n"))

    def timeless(words):  # how long a rank had waited when it was ended depends on the machine
        return re.sub(r"for [\d.]+(?: to [\d.]+)? s", "for ... s", words)

    shown, _, whole = done.stderr.partition("labkit.comm.autopsy.RanksFailed: ")
    assert timeless(autopsy) == timeless(f"labkit.comm.autopsy.RanksFailed: {whole}"), "a real one, and whole"
    assert shown.count('File "') == 2 and 'hello.py", line' in shown, "of labkit, the one frame that raises"


def test_the_house_is_drawn_as_it_stands():
    """Weeks and packages in the picture, from the top, are those of the import contracts."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one.get("containers") == ["labkit"])
    tops = next(one["layers"] for one in contracts if "layers" in one and "containers" not in one)
    names = [name for layer in layers for name in layer.split(" | ")]
    drawn = re.findall(r'font-weight="700">(\w+)</tspan>', (ROOT / "docs" / "images" / "house.svg").read_text())
    held = [*(top for top in tops if top != "labkit"), *(name for name in names if name != "__main__")]
    assert drawn == held, "python -m docs.images.draw house"


def test_presets_in_the_table_are_all_there_are():
    listed = re.search(
        r"\| preset \|.*?\n\n", (ROOT / "docs" / "renting-details.md").read_text(encoding="utf-8"), re.S
    )[0]
    named = set(re.findall(r"`([\w-]+)`", listed))
    there = {path.stem for path in (ROOT / "labkit" / "compare" / "presets").glob("*.toml")}
    assert named == there - {"cpu-tiny"}, "cpu-tiny is make demo's"
