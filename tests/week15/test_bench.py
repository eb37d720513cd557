"""The bench at toy size on two processes: its rows, its failures, its record; and what is computed from a record."""

import pytest

from labkit.errors import LabError
from week15_tp_attention import bench
from week15_tp_attention.given import blocks, records


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "bench15.json"
    assert bench.main(["--size", "toy", "--ranks", "2", "--device", "cpu", "--budget", "0.01", "--out", str(path)]) == 0
    return records.load(path)


@pytest.mark.timeout(180)
def test_every_own_part_and_dtensor_are_measured_and_right(record):
    """float32 and sums of at most some hundred products: 1e-5 is tens of roundings."""
    wanted = {*blocks.OWN, "DTensor, plain", "DTensor, sequence"}
    for what in bench.WHAT:
        rows = {row["contender"]: row for row in record["rows"] if row["what"] == what and row["N"] == 2}
        assert set(rows) == wanted - (set() if what == "block" else {"sequence, kept", "sequence, gathered again"})
        assert all(row["error"] < 1e-5 and row["seconds"] > 0 for row in rows.values())
        kept = {name: row["kept_bytes"] for name, row in rows.items()}
        if what == "block":
            assert kept["sequence, gathered again"] < kept["sequence, kept"] <= kept["plain"]


def test_what_cannot_run_here_is_listed_with_its_reason(record):
    assert {f["why"] for f in record["failures"] if f["contender"] == "sequence, kept"} == {
        "LabError: 15.3 is a whole block: no attention layer by itself"
    }
    lines = [line for line in bench.table(record).splitlines() if line.startswith("not measured")]
    assert len(lines) == len({f["why"] for f in record["failures"]}), "those with the same reason share a line"
    assert all(any((f["contender"] or f["what"]) in line for line in lines) for f in record["failures"])
    assert {"te.Linear", "torch async TP", "gap"} <= {f["contender"] or f["what"] for f in record["failures"]}
    assert len(record["pipeline"]) == 6 and len({round(r["loss"], 5) for r in record["pipeline"] if r["M"] == 4}) == 1


def test_the_table_says_what_a_launch_costs_this_host(record):
    assert record["launch_us"] is None and "launch" not in bench.table(record)
    assert bench.table({**record, "launch_us": 7.31}).startswith("this host takes 7.3 us to launch a kernel")


def test_a_limit_leaves_out_the_rest(tmp_path):
    path = tmp_path / "b.json"
    bench.main(["--size", "toy", "--ranks", "2", "--device", "cpu", "--limit", "0", "--out", str(path)])
    kept = records.load(path)
    assert not kept["rows"] and all(f["why"] == "left out: 0 s were over" for f in kept["failures"])


def test_flops_and_bytes_are_those_of_the_written_task():
    """The numbers of 15.7's model answer."""
    shape = bench.SHAPES["full"]
    assert shape.flops("block") == pytest.approx(12.4e12, rel=0.005)
    assert shape.ring_bytes("block", 2) == pytest.approx(4 * 67.1e6, rel=0.001)
    assert shape.ring_bytes("block", 4) == pytest.approx(4 * 100.7e6, rel=0.001)


def test_a_block_from_its_bytes_by_hand():
    """t(1) = 8 s, 4 rings of two messages of half of 4 bytes each: 4 * 2 * (0.125 + 2 / 4) s."""
    kept = {"rows": [{"what": "block", "contender": "plain", "N": 1, "seconds": 8.0}], "dtype": "bfloat16"}
    kept["shape"] = {"B": 1, "T": 2, "D": 1}
    assert records.from_bytes(kept, 2, beta=4.0, alpha=0.125) == pytest.approx((9000.0, 100 * 8 / 18))
    with pytest.raises(LabError, match="no time"):
        records.from_bytes(kept | {"rows": []}, 2)
