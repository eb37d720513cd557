"""The benchmark: sizes, columns, nccl-tests files, wrong answers, unwritten tasks, records, and real ranks."""

import json
import os
import shlex
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.comm.ranks import run_ranks
from labkit.errors import LabError
from tests import warm
from week13_allreduce import bench, cost_model
from week13_allreduce.given import contenders, nccl_tests, records

ROOT = Path(bench.__file__).parents[1]
DATA = Path(bench.__file__).parent / "data"


@pytest.mark.parametrize(
    "text, nbytes", [("512", 512), ("1K", 1024), ("64M", 64 << 20), ("4G", 4 << 30), ("2MiB", 2 << 20)]
)
def test_sizes_as_nccl_tests_writes_them(text, nbytes):
    assert bench.parse_size(text) == nbytes
    assert bench.parse_size(bench.human(nbytes)) == nbytes


def test_our_lines_are_read_as_nccl_tests_lines(tmp_path):
    row = {"size": 1 << 30, "count": 1 << 28, "seconds": 0.0093067, "algbw": 115.37e9, "busbw": 201.9e9, "wrong": 3}
    file = tmp_path / "ours.txt"
    file.write_text(nccl_tests.HEADER + "\n" + nccl_tests.line(row, "float32", "sum") + "\n")
    found = nccl_tests.read(file)["rows"]
    assert found == [pytest.approx(row, rel=1e-3)]
    table = file.read_text()
    slow = table.replace("9306", "99306")
    file.write_text(
        f"# 4 ranks\n#\n# all_gather: ring\n{slow}#\n# all_reduce: library\n{table}#\n# all_reduce: ring\n{slow}"
    )
    assert nccl_tests.read(file)["rows"] == found
    file.write_text(f"# 4 ranks\n#\n# all_gather: library\n{table}#\n# reduce_scatter: ring\n{table}")
    with pytest.raises(LabError, match="no all-reduce"):
        nccl_tests.read(file)


def test_a_real_file_of_nccl_tests():
    found = nccl_tests.read(DATA / "nccl_tests_2xh100_pcie.txt")
    assert found["ranks"] == 2 and [row["size"] for row in found["rows"]] == [1 << 30, 2 << 30, 4 << 30]
    assert found["rows"][0]["busbw"] == 115.37e9 and found["rows"][2]["seconds"] == pytest.approx(0.036943)
    assert found["in_place"][1]["algbw"] == 115.93e9


def test_old_formats_prefixes_and_rank_lines(tmp_path):
    file = tmp_path / "old.txt"
    file.write_text(
        "#   Rank  0 Pid 1 on x device  0\n#   Rank  3 Pid 2 on x device  3\n"
        "  4194304   1048576   float   sum   120.1   34.92   52.38  0e+00   115.5   36.31   54.47  0e+00\n"
        "[0]  8388608  2097152  float  sum  -1   992.6    8.45   16.20    0   986.0    8.51   16.31  N/A\n"
    )
    found = nccl_tests.read(file)
    assert found["ranks"] == 4 and [row["size"] for row in found["rows"]] == [4194304, 8388608]
    assert found["rows"][0]["busbw"] == 52.38e9 and found["in_place"][1]["wrong"] is None
    file.write_text("nothing here\n")
    with pytest.raises(LabError, match="no line of nccl-tests"):
        nccl_tests.read(file)


MARKS = ["", "[1,0]<stdout>:", "0: ", " 0: ", "[0] ", "[default0]:", "launcher-x7k: ", "[pod/launcher-x7k/main] "]
MARKS += ["2026-03-14T10:22:01.123456789Z ", "launcher-x7k main ", "worker-0 | ", "10:22:01 ", "0 "]


@st.composite
def outputs(draw):
    """(what all_reduce_perf of some version printed below some launcher, its ranks and rows)."""
    N, mark = draw(st.integers(2, 64)), draw(st.sampled_from(MARKS))
    root, stamped, per_iteration = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    wrong_name = draw(st.sampled_from(["#wrong", "error"]))
    each = ["time", "algbw", "busbw", wrong_name] + ["i_min", "i_max", "i_p99", "i_cv%"] * per_iteration
    head = ["size", "count", "type", "redop"] + ["root"] * root + each * 2 + ["timestamp"] * stamped
    lines = [f"#  Rank {r:2d} Group  0 Pid {r} on node device {r} [0x8d] NVIDIA H100" for r in range(N)]
    lines += ["#", "#    out-of-place    in-place", "# " + "  ".join(head), "#  (B)  (elements)  (us)  (GB/s)"]
    rows = []
    for size in draw(st.lists(st.integers(10, 33), min_size=1, max_size=5, unique=True)):
        algbw = draw(st.floats(0.5, 400))
        wrong = "1e-06" if wrong_name == "error" else draw(st.sampled_from(["0", "7", "N/A"]))
        cells = [f"{draw(st.floats(5, 1e6)):.2f}", f"{algbw:.2f}", f"{algbw * 2 * (N - 1) / N:.2f}", wrong]
        cells += ["1.00", "2.00", "3.00", "4.00"] * per_iteration
        words = [str(2**size), str(2**size // 4), "float", "sum"] + ["-1"] * root + cells * 2
        lines += [" " * draw(st.integers(0, 9)) + "  ".join(words) + "  2026-03-14 10:22:01" * stamped]
        lines += ["node:18800:18850 [0] NCCL INFO AllReduce: opCount 5 count 256 datatype 7 op 0"] * draw(st.booleans())
        numbers = [float(cell) for cell in cells[:3]]
        values = {"seconds": numbers[0] / 1e6, "algbw": numbers[1] * 1e9, "busbw": numbers[2] * 1e9}
        counted = {"1e-06": 0, "0": 0, "7": 7, "N/A": None}[wrong]
        rows.append({"size": 2**size, "count": 2**size // 4, **values, "wrong": counted})
    lines += ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 0.105"]
    return "".join(mark + line + "\n" for line in lines), N, rows


@given(outputs())
@settings(max_examples=100, deadline=None)
def test_any_version_below_any_launcher(tmp_path_factory, output):
    text, N, rows = output
    file = tmp_path_factory.mktemp("nccl") / "out.txt"
    file.write_text(text)
    found = nccl_tests.read(file)
    assert found == {"ranks": N, "rows": rows, "in_place": rows, "unread": 0}
    for name in ("all_gather_perf", "reduce_scatter_perf", "sendrecv_perf"):
        file.write_text(f"$ ./build/{name} -b 8\n{text}")
        with pytest.raises(LabError, match=name):
            nccl_tests.read(file)
    file.write_text(text + text)
    with pytest.raises(LabError, match="2 tables"):
        nccl_tests.read(file)
    file.write_text(text.replace("sum", "none"))
    with pytest.raises(LabError, match="another collective"):
        nccl_tests.read(file)


def test_bandwidths_say_how_many_ranks_there_were_or_that_it_is_no_all_reduce(tmp_path):
    file = tmp_path / "x.txt"
    file.write_text("  4294967296  1073741824  float  sum  -1  20600  208.49  364.86  0\n")
    assert nccl_tests.read(file)["ranks"] == 8
    file.write_text("17179869184  8589934592  bfloat16  sum  -1  91276  188.22  376.23  0\n")  # of 1,840 ranks
    assert nccl_tests.read(file)["ranks"] is None
    for share in (0.25, 0.5, 3.0):
        file.write_text(f"  8192  2048  float  sum  -1  20.00  100.00  {100 * share:.2f}  0\n")
        with pytest.raises(LabError, match="another collective"):
            nccl_tests.read(file)


@pytest.mark.parametrize("dtype, size", [("float", 4), ("half", 2), ("f8e4m3", 1), ("uint64", 8)])
def test_sizes_that_are_no_all_reduces_are_refused(tmp_path, dtype, size):
    """A gather counts one rank's elements. Its bandwidths say so only where they are large."""
    (tmp_path / "x.txt").write_text(f"  8192  {8192 // size}  {dtype}  sum  -1  24.01  0.01  0.01  0\n")
    assert len(nccl_tests.read(tmp_path / "x.txt")["rows"]) == 1
    (tmp_path / "x.txt").write_text(f"  8192  {8192 // size // 8}  {dtype}  sum  -1  24.01  0.01  0.01  0\n")
    with pytest.raises(LabError, match="another collective"):
        nccl_tests.read(tmp_path / "x.txt")


def test_the_json_of_nccl_tests(tmp_path):
    call = {"time": 45.46, "alg_bw": 100.0, "bus_bw": 175.0, "nwrong": 0}
    result = {"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": call}
    whole = {"version": 1, "args": ["./build/all_reduce_perf"]}
    whole["results"] = [{**result, "in_place": {**call, "nwrong": None}}]
    whole["devices"] = [{"rank": rank, "group": 0} for rank in range(8)]
    file = tmp_path / "out.json"
    file.write_text(json.dumps(whole))
    found = nccl_tests.read(file)
    assert found["ranks"] == 8 and found["rows"][0]["seconds"] == pytest.approx(45.46e-6)
    assert found["rows"][0]["wrong"] == 0 and found["in_place"][0]["wrong"] is None
    file.write_text(json.dumps(whole)[:-30])
    with pytest.raises(LabError, match="no line of nccl-tests"):
        nccl_tests.read(file)


def wrong_by(function, collective="all_reduce", op="sum", dtype=torch.float32):
    """#wrong of a function, as every rank reports it."""

    def job(group):
        own = torch.empty(5000 if collective == "all_gather" else 20000, dtype=dtype)
        return contenders._wrong(lambda: function(own, group), own, collective, group, op)

    counts = set(run_ranks(job, size=4, backend="threads"))
    assert len(counts) == 1
    return counts.pop()


def test_every_wrong_number_is_counted():
    assert wrong_by(lambda x, g: g.all_reduce(x), dtype=torch.bfloat16) == 0
    for op in ("sum", "mean", "max"):
        assert wrong_by(lambda x, g, op=op: g.all_reduce(x, op), op=op) == 0
    assert wrong_by(lambda x, g: x) > 4 * 20000 * 0.9  # the input, returned
    assert wrong_by(lambda x, g: g.all_reduce(x).fill_(float("nan"))) == 4 * 20000

    def one_wrong(x, group):
        group.all_reduce(x)
        x[-1] += group.rank == 2
        return x

    assert wrong_by(one_wrong) == 1


def test_chunks_in_the_wrong_place_are_wrong():
    assert wrong_by(lambda x, g: g.all_gather(x), collective="all_gather") == 0
    assert wrong_by(lambda x, g: g.all_gather(x).roll(5000), collective="all_gather") > 4 * 20000 * 0.9
    assert wrong_by(lambda x, g: g.reduce_scatter(x), collective="reduce_scatter") == 0
    assert wrong_by(lambda x, g: g.all_reduce(x)[:5000], collective="reduce_scatter") > 3 * 5000 * 0.9


def test_without_task_13_1_there_is_no_fit_and_everything_else(monkeypatch):
    def blank(*args):
        raise NotImplementedError("Task 13.1: fit alpha and beta")

    monkeypatch.setattr(cost_model, "fit_alpha_beta", blank)
    rows = [{"size": 1 << k, "count": 1, "seconds": 1e-3, "wrong": 0, "iterations": 3} for k in (10, 12, 14)]
    entry = bench._finish({"rows": rows, "note": ""}, "all_reduce", "ring", 4)
    assert entry["fit"] is None and "Task 13.1" in entry["note"]
    assert entry["rows"][0]["busbw"] == pytest.approx(1024 / 1e-3 * 1.5)


def test_the_fit_is_of_the_large_sizes():
    cost = cost_model.ring_all_reduce_cost(8)
    seconds = {1 << k: cost.time(1 << k, 2e-6, 1 / 300e9) * (3 if k < 20 else 1) for k in range(10, 33)}
    rows = [{"size": size, "seconds": took} for size, took in seconds.items()]
    fit = records.fit(rows, cost)
    assert fit["from_bytes"] == 1 << 20 and fit["worst"] < 1e-6
    assert fit["alpha"] == pytest.approx(2e-6) and 1 / fit["beta"] == pytest.approx(300e9)


def test_records_come_back_and_others_are_refused(tmp_path):
    record = {"kind": "collectives", "ranks": 8, "nodes": 1, "device": "cuda"}
    record["series"] = [{"collective": "all_reduce", "contender": "library", "rows": [{"size": 1}]}]
    records.save(record, tmp_path / "h200-8.json")
    records.save({**record, "device": "cpu", "ranks": 4}, tmp_path / "laptop.json")
    found = records.recorded(tmp_path)
    assert list(found) == [8] and records.series(found[8], "library") == [{"size": 1}]
    assert records.series(found[8], "ring") == [] and records.recorded(tmp_path / "none") == {}
    (tmp_path / "other.json").write_text('{"kind": "train"}')
    with pytest.raises(LabError, match="no benchmark record"):
        records.recorded(tmp_path)


@pytest.mark.thorough
def test_on_four_processes(tmp_path):
    words = shlex.split("-b 1K -e 64K -f 64 --ranks 4 --device cpu --budget 0.02 --collectives all --wire 2")
    status = bench.main([*words, "--contenders", "library,ring,pipelined", "--out", str(tmp_path)])
    record = records.load(tmp_path / "bench.json")
    assert status == 0
    both = [(collective, who) for collective in ("all_gather", "reduce_scatter") for who in ("library", "ring")]
    measured = [(e["collective"], e["contender"]) for e in record["series"]]
    assert measured == [*(("all_reduce", who) for who in ("library", "ring", "pipelined")), *both]
    for entry in record["series"]:
        factor = 1.5 if entry["collective"] == "all_reduce" else 0.75
        assert [row["size"] for row in entry["rows"]] == [1024, 65536]
        for row in entry["rows"]:
            assert row["wrong"] == 0 and row["seconds"] > 0
            assert row["busbw"] == pytest.approx(factor * row["size"] / row["seconds"])
    assert record["wire"] == 2e9 and record["transport"] == "gloo" and record["ranks"] == 4
    assert (tmp_path / "busbw_all_reduce.png").exists()
    read = nccl_tests.read(tmp_path / "bench.txt")["rows"]
    assert [row["size"] for row in read] == [1024, 65536]
    assert read[1]["seconds"] == pytest.approx(record["series"][0]["rows"][1]["seconds"], rel=1e-2)
    assert str(Path.home()) not in (tmp_path / "bench.json").read_text()


def test_one_rank_sends_nothing_and_has_a_picture(tmp_path, recwarn):
    record = bench.run_bench("1K", "2K", ranks=1, contenders="library", budget=0.01, device="cpu", out=str(tmp_path))
    assert [row["busbw"] for row in record["series"][0]["rows"]] == [0.0, 0.0]
    assert (tmp_path / "busbw_all_reduce.png").exists() and not [w for w in recwarn if "ylims" in str(w.message)]


def test_under_torchrun(tmp_path):
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "week13_allreduce.bench"]
    words = shlex.split("-b 4K -e 4K --budget 0.01 --contenders library,ring --device cpu --dtype bfloat16 --op mean")
    (tmp_path / "tmp").mkdir()  # torchrun leaves a folder of logs in the temporary folder
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path / "tmp")}
    done = warm.python(*launch, *words, "--out", str(tmp_path), cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads((tmp_path / "bench.json").read_text())
    assert record["ranks"] == 2 and record["dtype"] == "bfloat16"
    assert [row["wrong"] for entry in record["series"] for row in entry["rows"]] == [0, 0]
    assert done.stdout.count("# all_reduce: ring") == 1  # one rank speaks
