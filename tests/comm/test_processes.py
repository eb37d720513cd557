"""What is special about ranks as processes: how functions, results and output travel, and what survives what."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from labkit.comm import forkserver
from labkit.comm.ranks import RankPool, RanksFailed, run_ranks
from labkit.errors import LabError

ROOT = str(Path(__file__).resolve().parents[2])
ENV = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}


def script(path, text, *args, timeout=120, **options):
    path.write_text(text)
    return subprocess.run([sys.executable, str(path), *args], capture_output=True, text=True, timeout=timeout, env=ENV, **options)


def gone(pid, within=20.0):
    """Whether the process ends (a zombie that init has not collected counts)."""
    give_up = time.monotonic() + within
    while time.monotonic() < give_up:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


# -- what travels ---------------------------------------------------------------------------------------------------------
class Custom(Exception):
    def __init__(self, a, b):       # pickles, but does not unpickle: Exception keeps only its args
        super().__init__(f"{a} and {b}")


class Local:
    def __init__(self, x):
        self.x = x


def values(group, given):
    w = torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)
    big = torch.zeros(1000, 1000)
    return {"given": given, "view": big[0, :3], "bf16": torch.ones(3, dtype=torch.bfloat16), "parameter": w,
            "float8": torch.ones(2).to(torch.float8_e4m3fn), "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5),
            "loss": (torch.nn.Parameter(torch.ones(1)) * 3).sum(), "own class": Local(torch.arange(3)), "rank": group.rank,
            "strided": torch.arange(6).reshape(2, 3).t(), "numpy": torch.ones(2).numpy()}


def test_values_travel_both_ways(pools):
    given = {"x": torch.arange(4.0).reshape(2, 2).t(), "y": (1, "two", None)}
    for rank, got in enumerate(pools(values, given)):
        assert torch.equal(got["given"]["x"], given["x"]) and got["given"]["y"] == given["y"]
        assert got["view"].tolist() == [0, 0, 0] and got["view"].untyped_storage().nbytes() == 12    # not the whole storage
        assert got["bf16"].dtype == torch.bfloat16 and got["float8"].float().tolist() == [1, 1]
        assert got["empty"].shape == (0, 3) and got["scalar"].item() == 2.5 and got["scalar"].shape == ()
        assert isinstance(got["parameter"], torch.nn.Parameter) and not got["parameter"].requires_grad
        assert got["loss"].item() == 3 and not got["loss"].requires_grad
        assert isinstance(got["own class"], Local) and got["own class"].x.tolist() == [0, 1, 2]
        assert got["strided"].tolist() == [[0, 3], [1, 4], [2, 5]] and got["rank"] == rank
        got["view"] += 1        # its own memory, and writable


def large(group, x):
    print("x" * 300_000)        # more than a pipe holds
    return x * 2, torch.ones(8 << 20)


def test_large_values_do_not_block(pools, capsys):
    results = pools(large, torch.ones(4 << 20), size=2)
    assert all(a.sum() == 8 << 20 and b.numel() == 8 << 20 for a, b in results)
    assert capsys.readouterr().out.count("x") == 600_000


def unpicklable(group):
    return lambda: None


def raises_custom(group):
    raise Custom(1, 2)


def raises_unpicklable(group):
    error = ValueError("holds a lock")
    error.lock = threading.Lock()
    raise error


def returns_dtensor(group):
    from torch.distributed.tensor import distribute_tensor, Shard
    return distribute_tensor(torch.ones(4), group.device_mesh(), [Shard(0)])


def test_what_cannot_travel_is_told(pools):
    with pytest.raises(RanksFailed, match="return value cannot be sent back"):
        pools(unpicklable)
    with pytest.raises(RanksFailed, match="Custom: 1 and 2") as caught:
        pools(raises_custom)
    assert caught.value.error is None
    with pytest.raises(RanksFailed, match="ValueError: holds a lock"):
        pools(raises_unpicklable)
    with pytest.raises(RanksFailed, match="full_tensor"):
        pools(returns_dtensor)
    with pytest.raises(LabError, match="<lambda> cannot be sent to rank processes.*top level.*threads"):
        pools(lambda group: 1)
    with pytest.raises(LabError, match="one of its arguments cannot be sent"):
        pools(large, threading.Lock())


def in_notebook():
    def f(group):
        return group.rank
    f.__module__, f.__qualname__ = "__main__", "f"
    return f


def test_notebook_functions(monkeypatch):
    import types
    kernel, f = types.ModuleType("__main__"), in_notebook()
    kernel.f = f
    monkeypatch.setitem(sys.modules, "__main__", kernel)        # a kernel's main module has no file
    with pytest.raises(LabError, match="defined in a notebook.*backend='threads'"):
        run_ranks(f, size=2, backend="processes")
    assert run_ranks(f, size=2, backend="threads") == [0, 1]


def talks(group):
    print(f"hello from {group.rank}")
    print("to stderr", file=sys.stderr)
    os.write(1, b"from C, without a newline")
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


def test_output_is_not_lost(helper, capsys):
    with pytest.raises(RanksFailed):
        run_ranks(talks, size=2, backend="processes", timeout=30)
    out, err = capsys.readouterr()
    assert {"[rank 0] hello from 0", "[rank 1] hello from 1", "[rank 0] from C, without a newline"} <= set(out.splitlines())
    assert err.count("to stderr") == 2


def where_am_i(group):
    return (os.getcwd(), os.environ.get("LABKIT_TEST"), list(sys.argv), torch.get_num_threads(), os.getsid(0) == os.getpid(),
            os.environ.get("GLOO_SOCKET_IFNAME"))


def test_surroundings(helper, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABKIT_TEST", "1")      # set after the helper was started
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for size in (1, 2):
        for got in run_ranks(where_am_i, size=size, backend="processes", timeout=60):
            assert got == (str(tmp_path), "1", sys.argv, max(1, cores // size), True, "lo") or sys.platform == "darwin"


def listening(group):
    """Addresses on which this process listens, as the kernel tells."""
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as file:
            for row in file.readlines()[1:]:
                cells = row.split()
                if cells[3] == "0A" and f"socket:[{cells[9]}]" in inodes:
                    found.append(cells[1].partition(":")[0])
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_it_listens_on_loopback_only(pools):
    for addresses in pools(listening):
        assert set(addresses) <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


# -- the pool -------------------------------------------------------------------------------------------------------------
def pid(group):
    return os.getpid()


def fail(group):
    raise ValueError("once")


def forgets(group):
    if group.rank == 0:
        with group.ledger.off():
            group.isend(torch.ones(3), 1)
    return os.getpid()


def die_later(group):
    threading.Timer(0.2, os._exit, [5]).start()
    return os.getpid()


def test_pool_keeps_its_processes_until_a_job_fails(nothing_left):
    with RankPool(2) as pool:
        first = pool.run(pid)
        assert pool.run(pid) == first and len(set(first)) == 2
        with pytest.raises(RanksFailed, match="once"):
            pool.run(fail)
        second = pool.run(pid)
        assert not set(first) & set(second)
        assert pool.run(forgets) == second
        third = pool.run(pid)       # a message that no ledger shows may still be under way: not with these processes
        assert not set(second) & set(third)
        assert pool.run(die_later) == third
        assert all(gone(p) for p in third)
        time.sleep(0.5)     # and the helper has collected them
        assert len(pool.run(pid)) == 2      # dead between two jobs: new ones
        assert len(pool.run(pid).ledgers) == 2
    assert len(pool.run(pid)) == 2
    pool.close()


def test_pool_never_runs_old_code(helper, tmp_path, monkeypatch):
    import importlib
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in {"labkit_test_inner": "X = 1\n", "labkit_test_outer":
                       "def job(group):\n    import labkit_test_inner\n    return labkit_test_inner.X\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    import labkit_test_outer
    with RankPool(2) as pool:
        pids = pool.run(pid)
        assert pool.run(labkit_test_outer.job) == [1, 1]
        (tmp_path / "labkit_test_inner.py").write_text("X = 2  # edited\n")
        assert pool.run(labkit_test_outer.job) == [2, 2]
        assert pool.run(pid) != pids


def floods(group):
    while True:
        print("y" * 1000)


def test_an_endless_print_does_not_flood(helper, capsys, nothing_left):
    with pytest.raises(RanksFailed, match="endless loop"):
        run_ranks(floods, size=2, backend="processes", timeout=1.0)
    out = capsys.readouterr().out
    assert len(out) < 2 * (5 << 20) and out.count("the rest of its output is dropped") == 2


def nested(group):
    return run_ranks(pid, size=2, backend="threads") == [os.getpid()] * 2


def test_threads_inside_a_rank(pools):
    assert pools(nested) == [True, True]


def test_from_two_threads_at_once(helper, nothing_left):
    found = []
    threads = [threading.Thread(target=lambda: found.append(run_ranks(pid, size=2, backend="processes", timeout=60)))
               for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2 and len({p for pids in found for p in pids}) == 4


def starts_children(group):
    child = subprocess.Popen(["sleep", "600"])
    print(f"child {child.pid}")
    if group.rank == 1:
        raise ValueError("leaves a child behind")


def test_children_of_ranks_end_with_them(helper, capsys, nothing_left):
    with pytest.raises(RanksFailed):
        run_ranks(starts_children, size=2, backend="processes", timeout=60)
    pids = [int(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if "child" in line]
    assert len(pids) == 2 and all(gone(p) for p in pids)


# -- scripts --------------------------------------------------------------------------------------------------------------
JOB = """
import os, sys, time
from labkit.comm.ranks import run_ranks
class Answer:
    def __init__(self, rank): self.rank = rank
def job(group, directory=None):
    if directory:
        open(f"{directory}/pid{group.rank}", "w").write(str(os.getpid()))
        group.barrier()
        while group.rank == 0: pass
        time.sleep(600)
    return Answer(group.rank)
"""


def test_script_with_guard(tmp_path):
    done = script(tmp_path / "s.py", JOB + """
if __name__ == "__main__":
    print([type(a) is Answer and a.rank for a in run_ranks(job, size=2, backend="processes", timeout=60)])
""")
    assert done.stdout.strip() == "[0, 1]", done.stderr


def test_script_without_guard_gets_one_sentence(tmp_path):
    done = script(tmp_path / "s.py", JOB + """
print(run_ranks(job, size=2, backend="processes", timeout=60))
""")
    assert done.returncode != 0 and done.stderr.strip().splitlines()[-1].startswith("labkit.errors.LabError: this script starts")
    assert '`if __name__ == "__main__":`' in done.stderr


def test_script_without_guard_whose_function_is_elsewhere_and_broken_imports(tmp_path):
    (tmp_path / "elsewhere.py").write_text(JOB)
    (tmp_path / "broken.py").write_text(JOB + "if os.getsid(0) == os.getpid(): import no_such_module\n")   # in ranks only
    done = script(tmp_path / "s.py", """
import broken
from elsewhere import job, run_ranks
print([a.rank for a in run_ranks(job, size=2, backend="processes", timeout=60)])
run_ranks(broken.job, size=2, backend="processes", timeout=60)
""")
    assert done.stdout.strip() == "[0, 1]", done.stderr
    assert "could not load the job: ModuleNotFoundError: No module named 'no_such_module'" in done.stderr


WAITING = JOB + """
if __name__ == "__main__":
    import tempfile
    tempfile.tempdir = sys.argv[1]
    try:
        run_ranks(job, sys.argv[1], size=2, backend="processes", timeout=None)
    except KeyboardInterrupt:
        print("interrupted")
"""


def started(tmp_path):
    """A program whose ranks run for ever: (process, pids of the ranks and of the helper)."""
    (tmp_path / "s.py").write_text(WAITING)
    process = subprocess.Popen([sys.executable, str(tmp_path / "s.py"), str(tmp_path)], env=ENV, stdout=subprocess.PIPE, text=True)
    give_up = time.monotonic() + 120
    while time.monotonic() < give_up:
        texts = [(tmp_path / f"pid{r}").read_text() for r in range(2) if (tmp_path / f"pid{r}").exists()]
        if len(texts) == 2 and all(texts):
            break
        time.sleep(0.05)
    pids = [int(text) for text in texts]
    with open(f"/proc/{pids[0]}/stat") as file:
        helper = int(file.read().rpartition(")")[2].split()[1])
    return process, [*pids, helper]


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@linux
def test_a_killed_program_leaves_nothing_behind(tmp_path):
    process, pids = started(tmp_path)
    process.kill()
    process.wait()
    assert all(gone(p) for p in pids)
    assert not list(tmp_path.glob("labkit-*"))


@linux
def test_a_killed_helper_leaves_no_ranks_behind(tmp_path):
    process, pids = started(tmp_path)
    os.kill(pids[-1], signal.SIGKILL)
    assert all(gone(p) for p in pids)
    assert process.wait(60) != 0
    assert not list(tmp_path.glob("labkit-*"))


@linux
def test_ctrl_c_leaves_nothing_behind(tmp_path):
    process, pids = started(tmp_path)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert out.strip() == "interrupted" and process.returncode == 0
    assert all(gone(p) for p in pids)
    assert not list(tmp_path.glob("labkit-*"))


def test_ctrl_c_on_threads_leaves_no_thread(nothing_left):
    def spin(group):
        while True:
            pass
    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run_ranks(spin, size=2, backend="threads", timeout=None)
    timer.join()


# -- bad calls ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("options, words", [
    ({"size": 0}, "size=0"), ({"size": 2.0}, "size=2.0"), ({"timeout": 0}, "timeout=0"), ({"timeout": "5"}, "timeout='5'"),
    ({"timeout": float("nan")}, "timeout=nan"), ({"backend": "mpi"}, "backend='mpi' is unknown"),
    ({"device": "tpu"}, "device='tpu' is unknown"), ({"backend": "threads", "device": "cuda"}, "move CPU tensors only"),
    ({"backend": "torchrun"}, "started by torchrun")])
def test_bad_options(options, words):
    with pytest.raises(LabError, match=words):
        run_ranks(pid, **options)
    with pytest.raises(LabError, match="needs a function"):
        run_ranks("pid")


@pytest.mark.skipif(torch.cuda.device_count() >= 64, reason="has them all")
def test_more_ranks_than_gpus(helper, nothing_left):
    have = torch.cuda.device_count()
    with pytest.raises(LabError, match=f"{have + 1} ranks need {have + 1} GPUs, and this machine has {have}"):
        run_ranks(pid, size=have + 1, backend="processes", device="cuda")


def test_shutdown_and_again(nothing_left):
    run_ranks(pid, size=2, backend="processes", timeout=60)
    process = forkserver._server.process
    forkserver.shutdown()
    assert process.poll() is not None
    assert len(run_ranks(pid, size=1, backend="processes", timeout=60)) == 1
