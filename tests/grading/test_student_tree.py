"""The tree that students of this course really get: every week released, nothing leaked, and it works."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from grading.release import release
from grading.tree import FILES, FOLDERS, PAGES
from labkit.checks.markers import blanks, strip
from labkit.checks.tasks import find_weeks
from tests.grading.minicourse import ROOT
from tests.pages import anchors, commands, links, pages, typed

WEEKS = find_weeks(ROOT)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """From a copy: what is being written is released here before git knows it."""
    course = tmp_path_factory.mktemp("source")
    for name in (*FILES, *(page for week in WEEKS for page in PAGES.get(week.name, ()))):
        (course / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, course / name)
    for name in (*FOLDERS, *(week.package for week in WEEKS)):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, course / name, ignore=skip, dirs_exist_ok=True)
    target = tmp_path_factory.mktemp("student") / "tree"
    report = release(target, [week.name for week in WEEKS], source=course)
    assert not report.beside and not report.blocked
    return target


def in_tree(tree, *words, **more):
    return subprocess.run(
        [sys.executable, *words], cwd=tree, env=ENVIRONMENT, capture_output=True, text=True, timeout=220, **more
    )


def texts(tree):
    """Every text file of the tree; of a notebook, the cells' text."""
    for path in sorted(tree.rglob("*")):
        if path.is_file() and path.suffix not in (".png", ".npz", ".jsonl", ".pyc") and ".labs" not in path.parts:
            content = path.read_bytes()
            text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
            if path.suffix == ".ipynb":
                text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
            yield path.relative_to(tree).as_posix(), text


def squeezed(line):
    return re.sub(r"\s+", "", re.sub(r"\s\s#.*", "", line))


def solution_lines():
    """(file, task, line, lines that the student's version of the file keeps) for each line of each solution."""
    for week in WEEKS:
        for path in sorted(week.folder.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            kept = {squeezed(line) for line in strip(text, path.name).splitlines()}
            for blank in blanks(text, path.name):
                for line in text.splitlines()[blank.begin : blank.end - 1]:
                    yield path.relative_to(ROOT).as_posix(), blank.task, line, kept


# Lines of a solution that stand elsewhere as well, and give nothing away there.
COMMON = {
    "N, r = group.size, group.rank",  # the first line of every worked example
    "for _ in range(iterations):",
    "def backward(ctx, dy):",  # the signature of every backward
    "links: dict[str, Link] = {}",  # given/machines.py builds its machines in such a table
    "links |= {name: Link(speed, alpha) for name, speed in path.items()}",  # given/machines.py builds its machines
    "routes[a, b] = list(path)",  # so, as 13.11 will
    "with torch.no_grad():",
    "for block in model.blocks():",  # how the decoder's blocks are walked, everywhere
    "for unit in self.units:",  # and a model's flat parameters
    "for unit in trainer.units:",
    "self.sharded.finish()",  # 14.4's interface, which given/contenders.py calls
    "self.optimizer.zero_grad()",
    "shapes = config.weight_shapes()",
    "except OSError as error:",
    'linear, casts = part("week16_fp8.linear"), part("week16_fp8.casts")',  # how given code asks for the weeks' parts
    'with group.compute("product"):',  # how every product is noted: 15.5's worked example does
    "def __init__(self) -> None:",
    "ctx.save_for_backward(x_MK, w_NK)",  # 16.5's worked example, which 16.11 and 16.12 follow
    "x_MK, w_NK = ctx.saved_tensors",
    "rounds = (N - 1).bit_length()",  # the number of rounds that test_stretch.py expects of a tree
}
LONG = 18  # characters without spaces: shorter lines ("return out") are anybody's


def test_no_line_of_a_solution_is_anywhere_in_the_tree(tree):
    common = {squeezed(line) for line in COMMON}
    where: dict[str, set[str]] = {}
    for name, text in texts(tree):
        for line in text.splitlines():
            where.setdefault(squeezed(line), set()).add(name)
    looked = 0
    for name, task, line, kept in solution_lines():
        line = squeezed(line)
        if len(line) < LONG or line in common:
            continue
        looked += 1
        found = where.get(line, set()) - ({name} if line in kept else set())  # a worked example in the same file
        assert not found, f"{task}: {line} of {name} is in {found}: another name there, or a line in COMMON"
    assert looked > 100


def test_no_model_answer_is_anywhere_in_the_tree(tree):
    everything = "\n".join(squeezed(line) for _, text in texts(tree) for line in text.splitlines())
    looked = 0
    for week in WEEKS:
        for cell in json.loads(week.notebook.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            for blank in blanks(source, week.name, markdown=cell["cell_type"] == "markdown"):
                for line in source.splitlines()[blank.begin : blank.end - 1]:
                    if len(squeezed(line)) >= LONG:
                        looked += 1
                        assert squeezed(line) not in everything, f"{blank.task}: {line}"
    assert looked > 10


def test_no_marker_no_output_and_nothing_of_the_instructors(tree):
    assert not {"grading", "tests", ".ci", "solutions"} & set(os.listdir(tree))
    assert not list((tree / "docs").glob("instructors*.md"))
    for name, text in texts(tree):
        assert "INSTRUCTOR" not in text, name
        if name.partition("/")[0] not in ("labkit",):
            assert "BEGIN SOLUTION" not in text and "END SOLUTION" not in text, name
        if name.endswith(".py"):
            assert not re.search(r"^\s*(from|import) (grading|tests)\b", text, re.MULTILINE), name
    for week in WEEKS:
        for cell in json.loads((tree / week.package / week.notebook.name).read_text())["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None


def test_links_in_the_trees_pages_lead_somewhere(tree):
    looked = 0
    for page in pages(tree):
        for target, anchor in links(page):
            looked += 1
            there = (page.parent / target).resolve() if target else page
            assert there.exists() and there.is_relative_to(tree.resolve()), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(there), f"{page.name} links to {target}#{anchor}"
    for week in WEEKS:
        for cell in json.loads((tree / week.package / week.notebook.name).read_text())["cells"]:
            for link in re.findall(r"\]\(([^)#\s]+)|<img [^>]*src=\"([^\"]+)", "".join(cell["source"])):
                if "://" not in (link := "".join(link)):
                    looked += 1
                    assert (tree / week.package / link).exists(), f"{week.name}'s notebook links to {link}"
    assert looked >= 15


def test_commands_on_the_trees_pages_are_students(tree):
    for page in pages(tree):
        assert not commands(page, tree), page.name
        assert not [line for line in typed(page) if re.match(r"grade\b|make (grading|lint|test-all)\b", line)], (
            page.name
        )


@pytest.mark.parametrize("week", WEEKS, ids=lambda week: week.name)
def test_a_weeks_page_asks_for_as_many_modules_as_are_graded(week):
    """Who counts on "the four modules" hands in four, and a fifth earns nothing."""
    numbers = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    text = (week.folder / "README.md").read_text().partition("## Hand in")[2]
    said = re.search(r"The (\w+) modules", text)[1]
    graded = {module for task in week.tasks if task.kind == "auto" for module in task.modules}
    assert numbers.index(said) + 1 == len(graded), sorted(graded)
    if "on_record" in week.notebook.read_text():
        assert "`predictions.jsonl`" in text


def test_the_tree_is_small_and_holds_no_raw_record(tree):
    """Released without week 16: 222 files, 2.5 MB, of which pictures and week 13's records are 1.3. A course of four
    weeks stays within twice that; the records behind the tables alone had 490 files and 16 MB."""
    files = [path for path in tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    # What a week's `records` names, its notebook reads.
    named = {week.folder.name + "/results/" + record for week in WEEKS for record in week.records}
    names = {path.name for path in files if path.relative_to(tree).as_posix() not in named}
    assert not names & {"run.json", "steps.jsonl", "events.jsonl"}
    assert not [name for name in names if name.endswith((".jsonl.gz", ".md.j2"))]
    assert len(files) < 300 + 50 * len(WEEKS) and sum(path.stat().st_size for path in files) < 3e6 + 0.5e6 * len(WEEKS)


def test_what_notebooks_read_is_there(tree):
    code = (
        "import pathlib, tempfile\nfrom week13_allreduce.given import anatomy_picture, records\n"
        "assert sorted(records.recorded()) == [2, 4]\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    drawn = {f'{name}.png' for name in anatomy_picture.pictures(pathlib.Path(folder))}\n"
        "assert drawn == {path.name for path in records.RESULTS.glob('*.png')}, drawn\n"
    )
    done = in_tree(tree, "-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("week", WEEKS, ids=lambda week: week.name)
def test_a_released_week_imports_and_scores_nothing_and_every_task_is_not_attempted(tree, week):
    modules = sorted(
        ".".join((tree / week.package / name).relative_to(tree).with_suffix("").parts)
        for name in (path.relative_to(week.folder) for path in week.folder.rglob("*.py"))
        if not name.name.startswith("test_") and name.name != "__init__.py"
    )
    code = (
        "import importlib, sys, labkit\nassert labkit.__file__.startswith(sys.argv[1]), labkit.__file__\n"
        "for name in sys.argv[2:]: assert importlib.import_module(name).__file__.startswith(sys.argv[1]), name\n"
    )
    done = in_tree(tree, "-W", "error::SyntaxWarning", "-c", code, str(tree), *modules)
    assert done.returncode == 0 and not done.stdout, done.stderr

    stretch = [task.id for task in week.tasks if task.kind == "stretch"]
    done = in_tree(tree, "-m", "labkit", "check", week.name, *stretch, "--json", "--deadline", "30")
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert result["points"] == 0 and result["possible"] == week.points("auto") > 0
    assert [task["id"] for task in result["tasks"]] == [task.id for task in week.tasks]
    for task in result["tasks"]:
        assert task["cases"] or task["kind"] == "written", task["id"]
        for case in task["cases"]:
            assert case["verdict"] == "not attempted", f"{case['test']}: {case['text']}"
            assert case["text"].startswith(f"not attempted yet: Task {task['id']}"), case["text"]


@pytest.mark.thorough
def test_plain_pytest_finds_the_weeks(tree):
    done = in_tree(tree, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {line.partition("/")[0] for line in done.stdout.splitlines() if "::" in line}
    assert found == {week.package for week in WEEKS}
