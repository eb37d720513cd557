"""A submission's files are compiled once, in the sandbox; ranks then read what came of it, as long as it is true."""

import importlib.util
import marshal
import os
from types import SimpleNamespace

import pytest
import torch

from grading.sandbox.call import End
from grading.sandbox.runner import SandboxRunner
from labkit.checks import values
from labkit.checks.runner import Job
from tests.grading.sandbox.attacking import PACKAGE, Field

ONE = "def answer(group):\n    return {}\n"
DEEP = "x = " + "(" * 50_000 + ")" * 50_000 + "\n"  # the parser gives up


@pytest.fixture(scope="module")
def submission(tmp_path_factory):
    made = Field(tmp_path_factory.mktemp("compiled"))
    for name, text in {
        "one.py": ONE.format(1),
        "deep.py": DEEP,
        "broken.py": "def answer(:\n",
        "null.py": "a = '\0'\n",
    }.items():
        (made.folder / PACKAGE / name).write_text(text)
    yield made
    made.close()


@pytest.fixture
def runner(submission):
    return submission.runner(precompile=True)


def pyc(submission, name):
    return submission.folder / importlib.util.cache_from_source(f"{PACKAGE}/{name}.py")


def test_what_can_be_compiled_is_and_what_cannot_fails_where_it_is_imported(submission, runner):
    assert submission.ask("one.answer", runner=runner).values == [1]
    assert pyc(submission, "one").is_file() and pyc(submission, "__init__").is_file()
    for name, words in (("broken", "SyntaxError"), ("deep", "too many nested parentheses"), ("null", "null bytes")):
        assert not pyc(submission, name).exists()
        assert words in submission.ask(f"{name}.answer", runner=runner).text


def test_ranks_read_it_only_while_the_source_is_the_same(submission, runner):
    assert submission.ask("one.answer", runner=runner).values == [1]
    path, source = pyc(submission, "one"), submission.folder / PACKAGE / "one.py"
    head = path.read_bytes()[:16]
    path.write_bytes(head + marshal.dumps(compile(ONE.format(2), "one.py", "exec")))
    assert submission.ask("one.answer", runner=runner).values == [2]  # it is what ranks read
    source.write_text(ONE.format(3))  # as long as before, perhaps in the same second
    assert submission.ask("one.answer", runner=runner).values == [3]


def ends(monkeypatch, *outcomes):
    """The next cases end so, whatever they run."""
    left = list(outcomes)

    class Ending:
        def __init__(self, *args):
            pass

        def run(self):
            return left.pop(0)

    monkeypatch.setattr("grading.sandbox.runner.Call", Ending)
    return left


def test_what_comes_back_is_laid_beside_its_source_and_nowhere_else(submission, monkeypatch, tmp_path):
    """The answer comes out of the sandbox: a path in it is a claim."""
    code = torch.zeros(20, dtype=torch.uint8)
    wicked = (f"{PACKAGE}/../../beside.py", str(tmp_path / "absolute.py"), f"{PACKAGE}/none.py")
    found = {f"{PACKAGE}/one.py": code, **dict.fromkeys(wicked, code)}
    runner = SandboxRunner(submission.folder)
    ends(monkeypatch, End("passed", answers=[values.pack(("ok", found))]))
    before = {path for path in submission.folder.parent.rglob("*") if path.suffix == ".pyc"}
    assert runner._compile(SimpleNamespace(processor=lambda: 0.0))
    after = {path for path in submission.folder.parent.rglob("*") if path.suffix == ".pyc"}
    assert after - before <= {pyc(submission, "one")} and pyc(submission, "one").read_bytes() == bytes(20)
    assert not list(tmp_path.rglob("*.pyc"))
    pyc(submission, "one").unlink()


def test_who_destroys_the_sandbox_by_being_compiled_is_run_uncompiled(submission, monkeypatch):
    started = []

    def box(*args):
        made = SimpleNamespace(alive=True, zygote=os.getpid(), start=lambda: None, processor=lambda: 0.0)
        made.close = lambda: setattr(made, "alive", False)
        started.append(made)
        return made

    monkeypatch.setattr("grading.sandbox.runner.Box", box)
    one = End("passed", answers=[values.pack(("ok", 1, ()))], ledgers=[])
    left = ends(monkeypatch, End("crashed", fatal=True), one)
    with SandboxRunner(submission.folder, precompile=True) as runner:
        reply = runner.run(Job(submission.folder, PACKAGE, "one.answer", ((),), {}, False))
    assert reply.values == [1] and not left
    assert len(started) == 2 and not started[0].alive
