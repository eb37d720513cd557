"""What keeps a rank cheap, each shown by what it does: 186 ranks of a good submission would feel it, no test would."""

from __future__ import annotations

import ast
import ctypes
import errno
import struct
from pathlib import Path

import pytest

from grading.sandbox.inside import calls
from labkit.checks.boundary import BASE
from labkit.checks.tasks import find_weeks
from tests.grading.sandbox.attacking import PACKAGE, Field
from tests.grading.test_run import needs_sandbox

MODULES = """
import sys

HELD = sorted(name for name in sys.modules if name.startswith("labkit."))

def held(group):
    return HELD
"""
# Blocks of 64 bytes as malloc gives them to a rank: in how many pages do they lie?
PAGES = """
import ctypes

def pages(group, count):
    malloc = ctypes.CDLL(None).malloc
    malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    return len({malloc(64) >> 12 for _ in range(count)})
"""
ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000
STEPS = 48  # of the filter for a call: nine or so for a list by halves, and the calls with arguments after it


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    made = Field(tmp_path_factory.mktemp("cheap"))
    for name, text in (("modules", MODULES), ("heap", PAGES)):
        (made.folder / PACKAGE / f"{name}.py").write_text(text)
    yield made
    made.close()


@pytest.mark.thorough
@needs_sandbox
def test_what_a_weeks_scenarios_import_of_labkit_is_there_before_a_rank_is(field):
    """A sandbox has no .pyc of labkit: each rank would compile it."""
    wanted = set()
    for week in find_weeks(Path(__file__)):
        if (path := week.folder / "scenarios.py").is_file():
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(BASE):
                    wanted.add(node.module)
    assert "labkit.checks.elsewhere" in wanted  # else this looks at nothing
    assert wanted <= set(field.got("modules.held"))


@pytest.mark.thorough
@needs_sandbox
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc's malloc, from 2.33 on")
def test_what_malloc_gives_a_rank_lies_side_by_side(field):
    """Given holes between what it shares with the zygote, a rank copies a page for each few of them."""
    count = 2000
    assert field.got("heap.pages", count=count) <= count * 80 // 4096 + 40  # 80: a block with its head


# -- the filter of calls, run as the kernel does -----------------------------------------------------------------------
def answer(code: bytes, words: list[int]) -> tuple[int, int]:
    """(what the filter returns, the steps it took) for a call's 32-bit words: number, machine, ..., arguments."""
    steps, at, value = 0, 0, 0
    while True:
        operation, yes, no, number = struct.unpack_from("=HBBI", code, 8 * at)
        at, steps = at + 1, steps + 1
        if operation == calls._LOAD:
            value = words[number // 4]
        elif operation == calls._AND:
            value &= number
        elif operation == calls._JUMP:
            at += number
        elif operation == calls._RETURN:
            return number, steps
        else:
            holds = {calls._JEQ: value == number, calls._JGE: value >= number, calls._JSET: bool(value & number)}
            at += yes if holds[operation] else no


def asked(number: int, machine: str, *arguments: int) -> list[int]:
    given = [*arguments, *(0,) * (6 - len(arguments))]
    return [number, calls.AUDIT[machine], 0, 0, *(word for one in given for word in (one & 0xFFFFFFFF, one >> 32))]


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_the_filter_allows_what_is_on_the_list_and_nothing_else(machine, column):
    code = calls.program(machine)
    allowed = {numbers[column] for numbers in calls.ALLOWED.values()} - {None}
    by_argument = {calls.CLONE[machine], calls._PRCTL[machine], calls._MADVISE[machine], calls._PRLIMIT[machine]}
    by_argument |= {calls._FCNTL[machine], calls._IOCTL[machine], *calls._SOCKETS[machine]}
    for number in (*range(2000), 0x3FFFFFFF, 0x7FFFFFFF, 0xFFFFFFFF):
        got, steps = answer(code, asked(number, machine))
        assert steps <= STEPS
        if number in by_argument:
            continue
        if machine == "x86_64" and number >= 0x40000000:
            assert got == ERROR | errno.EPERM
        else:
            assert got == (ALLOW if number in allowed else ERROR | errno.ENOSYS), number
    for number in range(0x40000000, 0x40000400):  # x32's
        assert answer(code, asked(number, machine))[0] != ALLOW


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_looks_at_arguments(machine):
    code = calls.program(machine)
    eperm = ERROR | errno.EPERM

    def of(number: int, *arguments: int) -> int:
        return answer(code, asked(number, machine, *arguments))[0]

    assert of(calls.CLONE[machine], 0x11) == ALLOW and of(calls.CLONE[machine], 0x10000000) == eperm
    assert of(calls._PRCTL[machine], 15) == ALLOW and of(calls._PRCTL[machine], 4) == eperm
    assert of(calls._MADVISE[machine], 0, 0, 4) == ALLOW and of(calls._MADVISE[machine], 0, 0, 21) == eperm
    assert of(calls._FCNTL[machine], 0, 1) == ALLOW and of(calls._FCNTL[machine], 0, 1024) == eperm
    assert of(calls._IOCTL[machine], 0, 0x541B) == ALLOW
    assert of(calls._IOCTL[machine], 0, 0x5412) == ERROR | errno.ENOTTY
    assert of(calls._PRLIMIT[machine], 0, 7, 0) == ALLOW
    assert of(calls._PRLIMIT[machine], 0, 7, 1) == of(calls._PRLIMIT[machine], 0, 7, 1 << 32) == eperm
    for number in calls._SOCKETS[machine]:
        assert of(number, 1, 0x80001) == of(number, 10, 1) == ALLOW
        assert of(number, 1, 2) == ERROR | errno.ESOCKTNOSUPPORT and of(number, 40, 1) == ERROR | errno.EAFNOSUPPORT
    words = asked(0, machine)
    words[1] = 0x40000003  # a call of another machine's, by the same kernel
    assert answer(code, words)[0] == KILL
