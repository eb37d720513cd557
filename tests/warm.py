"""A command in a process of its own, without the seconds that importing torch takes.

A helper process imports what commands need and computes nothing; each command is forked from it. To the command that is
a fresh process: its own working directory, environment, arguments and output. What a fork cannot show, that the program
starts from nothing, other tests show with `subprocess`.
"""
from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["grading.run", "grading.cli", "labkit.record.compare", "labkit.cli"])


def run(main: str, words: Sequence[object], *, cwd: Path, env: Mapping[str, str] | None = None,
        timeout: float = 200) -> subprocess.CompletedProcess:
    """As `subprocess.run([python, "-m", MODULE, *words], capture_output=True, text=True, ...)`; `main` is
    "module:function", which gets the words as a list."""
    words = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        out.touch()
        err.touch()
        process = _processes.Process(target=_become, args=(main, words, str(cwd), dict(env or os.environ), out, err))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired([main, *words], timeout, out.read_text(), err.read_text())
        return subprocess.CompletedProcess([main, *words], process.exitcode, out.read_text(), err.read_text())


def _become(main: str, words: list[str], cwd: str, env: dict[str, str], out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    module, _, function = main.partition(":")
    sys.argv = [module, *words]
    sys.path.insert(0, cwd)
    getattr(importlib.import_module(module), function)(words)
