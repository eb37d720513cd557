"""What the machine refuses, a folder or a user's home, is one sentence of every program, and said before it measures."""

import ast
import errno
import importlib
import os
import pwd
import sys
from pathlib import Path

import pytest
from rich.console import Console

from labkit import cli
from labkit.errors import REFUSED, LabError, explain, run_command
from labkit.record.files import jupyter_may_start, writable

ROOT = Path(__file__).parents[1]
# Not typed by anybody: what Gradescope, Dask, a sandbox or a test starts, and two whose `main` is the command's.
PARTS = {"labkit/__main__.py", "grading/cli.py", "grading/many.py", "grading/gradescope/run.py", "capstone/drawn.py"}
PARTS |= {"grading/similar/trees.py", "grading/sandbox/inside/launch.py", "grading/sandbox/inside/zygote.py"}


def programs() -> set[str]:
    """The files that `python -m` starts."""
    found = set()
    for top in ("labkit", "grading", "studies", "capstone", *(path.name for path in ROOT.glob("week*_*"))):
        for path in (ROOT / top).rglob("*.py"):
            if '__name__ == "__main__"' in path.read_text(encoding="utf-8"):
                found.add(path.relative_to(ROOT).as_posix())
    return found


@pytest.mark.parametrize("file", sorted(programs() - PARTS))
def test_every_program_ends_by_run_command(file):
    *_, last = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    assert isinstance(last, ast.If) and len(last.body) == 1
    assert ast.unparse(last.body[0]).startswith("run_command("), "a refused folder would be a traceback"


@pytest.mark.parametrize("code", sorted(REFUSED))
@pytest.mark.parametrize("path", ["/shared/run.json", b"/shared/run.json", None, 7])
def test_a_refused_file_is_one_line_with_its_name(code, path, capsys):
    def body():
        raise OSError(code, os.strerror(code), path)

    with pytest.raises(SystemExit) as end:
        run_command("lab", body)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and said.startswith("lab: ") and os.strerror(code) in said
    assert ("/shared/run.json" in said) == isinstance(path, str | bytes)


ERRORS = [
    ImportError("libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4"),
    OSError("libcudnn.so.9: cannot open shared object file"),
    OSError(errno.ENOENT, "No such file or directory", "libtorch.so"),
    ModuleNotFoundError("No module named 'torch'", name="torch"),
    ValueError("The value of TORCH_DISTRIBUTED_DEBUG must be OFF, INFO, or DETAIL.\nand more"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("module", ["torch", "torch.distributed", "torch._C.x", "torchy", "my.torch", "labkit.torch"])
def test_a_torch_that_does_not_import_is_one_line(module, error, capsys):
    """An installation that is broken, or a variable that torch reads while it is imported."""

    def body():
        exec("raise error", {"__name__": module, "error": error.with_traceback(None)})

    torchs = module.startswith("torch.") or module == "torch" or getattr(error, "name", "") == "torch"
    with pytest.raises(SystemExit if torchs or getattr(error, "errno", None) else type(error)):
        run_command("lab", body)
    said = capsys.readouterr().err
    assert said.startswith("lab: torch does not import") == torchs and said.count("\n") <= 1
    assert not torchs or ("`lab doctor` says" in said and str(error).splitlines()[0] in said)


@pytest.mark.parametrize("width", ["0", "", "40"])
def test_a_terminal_without_a_size_is_printed_to(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", width)
    monkeypatch.setenv("LINES", "0")
    with pytest.raises(SystemExit) as end:
        run_command("lab", lambda: Console(file=sys.stdout).print("said"))
    assert end.value.code is None and capsys.readouterr().out == "said\n"


@pytest.mark.parametrize(
    "error", [OSError("x"), ConnectionResetError(errno.ECONNRESET, "x"), RuntimeError("x"), KeyError("x")]
)
def test_a_fault_of_ours_keeps_its_traceback(error):
    def body():
        raise error

    with pytest.raises(type(error)):
        run_command("lab", body)


def test_ranks_that_failed_are_asked_for_their_error(capsys):
    from labkit.comm.ranks import RanksFailed, run_ranks

    def rank(group, error):
        raise error

    for error, status, word in (
        (PermissionError(13, "Permission denied", "/x"), 2, "could not use /x"),
        (ValueError("y"), 1, "rank 0"),
    ):
        with pytest.raises(RanksFailed) as failed:
            run_ranks(rank, error, size=1, backend="threads")
        assert (explain(failed.value) is None) == (status == 1)
        with pytest.raises(SystemExit) as end:
            run_command("bench", lambda one=failed.value: (_ for _ in ()).throw(one))
        assert end.value.code == status and word in capsys.readouterr().err


# Each writes below {}, which is below a file: no user may do that, root neither.
MEASURES = [
    ("week13_allreduce.bench", "-b 1K -e 1K --ranks 2 --contenders library --out {}"),
    ("week14_fsdp.bench", "--size toy --parts ddp --device cpu --ranks 1 --out {}"),
    ("week15_tp_attention.bench", "--size toy --parts layers --device cpu --ranks 1 --out {}/x.json"),
    ("week16_fp8.bench", "--parts linear --shapes 64x64x64 --device cpu --out {}/x.json"),
    ("studies.interrupted", "studies/c5.toml --out {}/x"),
    ("studies.parameters", "{}/x.json --device cpu --ranks 1"),
    ("studies.alarms.study", "{} --seeds 1"),
    ("studies.verdict.pool", "{}/x.jsonl"),
    ("grading.benchmarks.thousand", "--out {}/x.json --count 1"),
    ("grading.benchmarks.kills", "--out {}/x.json"),
    ("grading.benchmarks.against_nbgrader", "--out {}/x.json"),
    ("labkit.cli", "plan --calibrate --device cpu --out {}/x.toml"),
    ("labkit.cli", "crossover --device cpu --m 64 --k 64 --n 64 --out {}"),
    ("labkit.cli", "race --out {}"),
]


@pytest.mark.parametrize("module, words", MEASURES, ids=[f"{module} {words}" for module, words in MEASURES])
def test_where_nothing_can_be_kept_nothing_is_measured(module, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    argv = words.format(tmp_path / "file" / "inside").split()
    monkeypatch.setattr(sys, "argv", [module, *argv])
    main = importlib.import_module(module).main
    with pytest.raises(SystemExit) as end:
        run_command("it", lambda: main(argv) if main.__code__.co_argcount else main())
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert end.value.code == 2 and "nothing was measured" in said, said


def test_trying_leaves_nothing(tmp_path):
    writable(tmp_path / "a" / "b")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b"]


@pytest.fixture
def homeless(monkeypatch):
    """A container's user: a number without a name, a home, or an entry in passwd."""

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "LABKIT_CACHE", "JUPYTER_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.parametrize("words", [["open", "week13"], ["compare", "--preset", "cpu-tiny", "--out", "{}/run"]])
def test_without_a_home_a_command_says_what_to_set(words, homeless, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([word.format(tmp_path) for word in words])
    assert end.value.code == 2
    assert "this user has no home folder: set " in capsys.readouterr().err.strip().splitlines()[-1]


def test_jupyter_is_not_started_where_it_cannot_write(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    jupyter_may_start()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(LabError, match="set HOME"):
        jupyter_may_start()
