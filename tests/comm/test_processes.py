"""What is special about ranks as processes: how functions, results and output travel, and what is refused."""

import contextlib
import os
import signal
import sys
import threading
import types

import pytest
import torch

from labkit.comm.ranks import RanksFailed, run_ranks
from labkit.errors import LabError


# -- what travels -----------------------------------------------------------------------------------------------------
class Custom(Exception):
    def __init__(self, a, b):  # pickles, but does not unpickle: Exception keeps only its args
        super().__init__(f"{a} and {b}")


class Local:
    def __init__(self, x):
        self.x = x


def values(group, given):
    ones, six = torch.ones(2), torch.arange(6)
    got = {"given": given, "rank": group.rank, "own class": Local(torch.arange(3)), "numpy": ones.numpy()}
    got |= {"bf16": ones.bfloat16(), "float8": ones.to(torch.float8_e4m3fn), "empty": torch.empty(0, 3)}
    got |= {"view": torch.zeros(1000, 1000)[0, :3], "every other": six[::2], "strided": six.reshape(2, 3).t()}
    got |= {"scalar": torch.tensor(2.5), "loss": (torch.nn.Parameter(torch.ones(1)) * 3).sum()}
    return got | {"parameter": torch.nn.Parameter(torch.ones(2, 2), requires_grad=False)}


def test_values_travel_both_ways(pools):
    given = {"x": torch.arange(4.0).reshape(2, 2).t(), "y": (1, "two", None)}
    for rank, got in enumerate(pools(values, given)):
        assert torch.equal(got["given"]["x"], given["x"]) and got["given"]["y"] == given["y"]
        assert got["view"].tolist() == [0, 0, 0] and got["view"].untyped_storage().nbytes() == 12  # not all of it
        assert got["bf16"].dtype == torch.bfloat16 and got["float8"].float().tolist() == [1, 1]
        assert got["empty"].shape == (0, 3) and got["scalar"].item() == 2.5 and got["scalar"].shape == ()
        assert isinstance(got["parameter"], torch.nn.Parameter) and not got["parameter"].requires_grad
        assert got["loss"].item() == 3 and not got["loss"].requires_grad
        assert isinstance(got["own class"], Local) and got["own class"].x.tolist() == [0, 1, 2]
        assert got["strided"].tolist() == [[0, 3], [1, 4], [2, 5]] and got["rank"] == rank
        assert got["every other"].tolist() == [0, 2, 4]
        got["view"] += 1  # its own memory, and writable


def large(group, x):
    print("x" * 300_000)  # more than a pipe holds
    return x * 2, torch.ones(8 << 20)


def test_large_values_do_not_block(pools, capsys):
    results = pools(large, torch.ones(4 << 20), size=2)
    assert all(a.sum() == 8 << 20 and b.numel() == 8 << 20 for a, b in results)
    assert capsys.readouterr().out.count("x") == 600_000


def raises_custom(group):
    raise Custom(1, 2)


def raises_unpicklable(group):
    error = ValueError("holds a lock")
    error.lock = threading.Lock()
    raise error


def returns_dtensor(group):
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(torch.ones(4), group.device_mesh(), [Shard(0)])


def test_what_cannot_travel_is_reported(pools):
    with pytest.raises(RanksFailed, match="return value cannot be sent back"):
        pools(lambda group: threading.Lock())
    with pytest.raises(RanksFailed, match="Custom: 1 and 2") as caught:
        pools(raises_custom)
    assert caught.value.error is None
    with pytest.raises(RanksFailed, match="ValueError: holds a lock"):
        pools(raises_unpicklable)
    with pytest.raises(RanksFailed, match="full_tensor"):
        pools(returns_dtensor)
    with pytest.raises(LabError, match="large or one of its arguments cannot be sent to rank processes"):
        pools(large, threading.Lock())
    lock = threading.Lock()
    with pytest.raises(LabError, match="<lambda> or one of its arguments cannot be sent .*from a .py file"):
        pools(lambda group: lock)


def test_a_module_that_no_rank_can_import_is_named(pools, monkeypatch):
    module = types.ModuleType("only_here")
    exec("def f(group):\n    return group.rank", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(LabError, match="could not load the job: ModuleNotFoundError: No module named 'only_here'"):
        pools(module.f)


def test_what_cannot_be_imported_travels_by_value(pools):
    """A function in a function, with what it uses; and a cell's, whose module no rank can import."""
    add = 10
    assert pools(lambda group: group.rank + add) == [10, 11]
    cell = {"__name__": "__main__", "torch": torch}
    exec("scale = torch.tensor(3.0)\ndef f(group):\n    return scale * group.rank", cell)
    assert [x.item() for x in pools(cell["f"])] == [0.0, 3.0]


def talks(group):
    print(f"hello from {group.rank}")
    print("to stderr", file=sys.stderr)
    os.write(1, b"from C, without a newline")
    group.barrier()  # who has not come so far half a second after the kill is ended before it has spoken
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


def test_output_is_not_lost(helper, capsys):
    with pytest.raises(RanksFailed):
        run_ranks(talks, size=2, backend="processes", timeout=30)
    out, err = capsys.readouterr()
    lines = set(out.splitlines())
    assert {"[rank 0] hello from 0", "[rank 1] hello from 1", "[rank 0] from C, without a newline"} <= lines
    assert err.count("to stderr") == 2


def where_am_i(group):
    return (
        os.getcwd(),
        os.environ.get("LABKIT_TEST"),
        list(sys.argv),
        torch.get_num_threads(),
        os.getsid(0) == os.getpid(),
        os.environ.get("GLOO_SOCKET_IFNAME"),
    )


def test_surroundings(helper, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "hsn0")  # of a site's profile: the network between its machines
    monkeypatch.setenv("LABKIT_TEST", "1")  # set after the helper was started
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    for size in (1, 2):
        for got in run_ranks(where_am_i, size=size, backend="processes", timeout=60):
            assert got == (str(tmp_path), "1", sys.argv, max(1, cores // size), True, "lo") or sys.platform == "darwin"


def listening(group):
    """Addresses on which this process listens, as the kernel tells."""
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/self/fd/{fd}"))
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


def pid(group):
    return os.getpid()


# -- bad calls --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options, words",
    [
        *(({"size": size}, f"size={size}") for size in (0, 2.0)),
        *(({"timeout": seconds}, f"timeout={seconds!r}") for seconds in (0, "5", float("nan"))),
        ({"backend": "mpi"}, "backend='mpi' is unknown"),
        ({"device": "tpu"}, "device='tpu' is unknown"),
        ({"backend": "threads", "device": "cuda"}, "move CPU tensors only"),
        ({"backend": "torchrun"}, "started by torchrun"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(LabError, match=words):
        run_ranks(pid, **options)
    with pytest.raises(LabError, match="needs a function"):
        run_ranks("pid")


@pytest.mark.skipif(torch.cuda.device_count() >= 64, reason="has them all")
def test_more_ranks_than_gpus(helper, nothing_left):
    have = torch.cuda.device_count()
    with pytest.raises(LabError, match=f"has no GPU, there are {have}: start fewer"):
        run_ranks(pid, size=have + 1, backend="processes", device="cuda")
