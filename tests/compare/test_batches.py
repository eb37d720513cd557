"""Batches that fit: what is tried after what, the largest found exactly, and `lab compare` on a GPU that is made up."""

import io
import json
import math

import pytest
import torch
from rich.console import Console

from labkit.compare import bundle, compare, follow, session
from labkit.compare.batches import GIB, Search
from labkit.compare.budget import REPORT_SECONDS, Budget, predict
from labkit.compare.plan import make_plan
from labkit.compare.preset import load_preset
from labkit.compare.scaling import scaling
from labkit.errors import LabError
from labkit.record import measure
from labkit.record.read import read_run
from labkit.record.schema import Try
from tests.compare.comparing import SPEED, loaded
from tests.compare.small_gpu import HAVE, REST, Gpu, line, on_rank

TEXT = SPEED.replace("world_size = 2", "world_size = 1").replace("batch_size = 4", "batch_size = 8")


def searched(needs, first: int, have: float, gap: float = 0.0) -> tuple[int, list[tuple[int, bool]]]:
    """(the batch that is timed, all tries) where `needs(rows)` GiB are needed, and `gap` more, and a GPU has `have`."""
    search, tries = Search(first, have * GIB), []
    while rows := search.micro_batch_size:
        fitted = needs(rows) + gap <= have
        tries.append((rows, fitted))
        search = search.after(Try(micro_batch_size=rows, fitted=fitted, need=needs(rows) * GIB, rest=REST * GIB))
        if fitted and search.micro_batch_size == rows:
            return rows, tries
        assert len(tries) < 40
    return 0, tries


@pytest.mark.parametrize("more", [0.0, 0.4, 5.0])
def test_the_largest_is_found_exactly_wherever_the_search_begins(more):
    """Memory along a line, from a fiftieth to a half of the GPU for a sequence, every other step."""
    for first in (1, 3, 8, 64):
        for part in range(2, 51, 2):
            need = line(80.0 / part - 0.01, more)
            found, tries = searched(need, first, 80.0)
            assert need(found + 1) > 80.0 and (not found or need(found) <= 80.0), (first, part, tries)
            rows = [each for each, _ in tries]
            assert len(rows) - len({*rows}) <= 1, "only the one that is timed may have been tried before"


@pytest.mark.parametrize("gap", [0.3, 1.5, 4.0])
def test_it_is_exact_where_the_allocators_gaps_fill_the_gpu_before_the_line_does(gap):
    for first in (2, 8):
        for each in (0.7, 2.0, 5.0):
            found, tries = searched(line(each), first, 80.0, gap)
            assert found == math.floor((80 - gap - line(each)(0)) / each) and len(tries) <= 14, (first, each, tries)


@pytest.mark.parametrize(
    "need, largest", [(lambda rows: max(18.0 + rows, 6.0 + 5.0 * rows), 14), (lambda rows: 10 + 0.21 * rows**2, 18)]
)
def test_a_bend_upwards_is_found_out_by_trying(need, largest):
    """Small batches tell too flat a line: the gradients' share hides the activations' up to some batch."""
    for first in (1, 2, 9, 30):
        found, tries = searched(need, first, 79.0)
        assert found == largest, tries


def tried(rows, need=0.0, rest=REST, fitted=True, short=0):
    return Try(micro_batch_size=rows, fitted=fitted, need=need * GIB, rest=rest * GIB, short=short)


FEW = [tried(n, line(5.0)(n)) for n in (8, 12)]
# What an H100 reported of compiled BF16 at 1.14B: 12 sequences fit, and in each step it gave memory back twice.
CALM, SHORT = tried(8, 56.7, 18), tried(12, 77.8, 18, short=4)
ALL_SHORT = [tried(n, 60, 50, short=2) for n in (4, 2, 1)]


@pytest.mark.parametrize(
    "have, tries, following",
    [
        (80, [tried(n, line(0.1)(n)) for n in (3, 4)], 8),  # a line is believed up to twice the largest
        (63, FEW, 12),
        (63, [*FEW, tried(12, fitted=False)], 11),  # it was tried and did not last a window
        (79.2, [CALM], 12),
        (79.2, [CALM, SHORT], 11),
        (79.2, [CALM, SHORT, tried(11, 72.5, 18)], 11),
        (79.2, [CALM, SHORT, tried(11, fitted=False)], 9),
        (79.2, [CALM, tried(12, 77.8, 18)], 12),  # calm, it is timed
        (82, [tried(2, 20, 10), tried(4, 30, 10), tried(8, 60, 10)], 10),  # by the line from 2 it would be 11
        (79, ALL_SHORT[:1], 2),
        (79, ALL_SHORT[:2], 1),
        (79, ALL_SHORT, 1),  # where every batch is short the smallest is timed
    ],
)
def test_what_is_tried_next(have, tries, following):
    assert Search(8, have * GIB, tries).micro_batch_size == following


# ---- the whole command


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`lab compare` of the speed part on this GPU: (gpu, settings) -> (exit status, what it said, its record)."""
    toml = tmp_path / "micro.toml"
    toml.write_text(TEXT)

    def call(gpu: Gpu, *settings: str, **words):
        said = io.StringIO()
        with monkeypatch.context() as patch:
            gpu.seen(patch)
            for name, value in words.pop("patches", {}).items():
                patch.setattr(compare, name, value)
            request = compare.Request(str(toml), out=tmp_path / "out", settings=settings, part="speed", **words)
            status = compare.compare(request, Console(file=said, width=200))
        return status, said.getvalue(), read_run(tmp_path / "out")

    return call


LARGEST = "speed.batch=largest"


def test_an_arm_that_runs_out_of_memory_is_tried_again_with_half(run):
    gpu = Gpu({"bf16": line(0.9), "fp8": line(1.2)})  # 9.7 and 12.1 GiB with 8 sequences
    status, _, record = run(gpu)
    assert status == 0 and gpu.ran == [("bf16", 8, True), ("fp8", 8, None), ("fp8", 4, True)]
    verdict, rows = record.comparison.results.speed.verdict, record.comparison.results.speed.arms
    assert (rows["bf16"].batch, rows["fp8"].batch) == (8, 4)
    assert "FP8: tried with 8 (out of memory) sequences a GPU." in verdict.reasons
    # Steps take as long whatever the batch here, so half the sequences train half the tokens.
    assert verdict.ratios["fp8"].baseline == pytest.approx(0.5)
    page = (record.path / "report.html").read_text()
    assert all(part in page for part in (rows["fp8"].label, rows["bf16"].label, "8 (out of memory)"))
    assert bundle.state(record.path) == "whole"
    run(gpu)
    assert len(gpu.ran) == 3, "another call repeats nothing"


CUDA = "rank 0 raised RuntimeError: "
CUBLAS = f"{CUDA}CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"


@pytest.mark.parametrize(
    "bf16, error, status, ran",
    [
        (9.0, "rank 0 raised OutOfMemoryError", 1, [8, 4, 2, 1]),  # it fits nowhere, and the others go on
        (9.0, "rank 0 raised ValueError: no", 1, [8]),
        (1.2, f"{CUDA}CUDA error: out of memory", 0, [8, 4]),
        (1.2, CUBLAS, 0, [8, 4]),
    ],
)
def test_what_ran_out_of_memory_is_tried_again_and_no_other_failure(run, bf16, error, status, ran):
    gpu = Gpu({"bf16": line(bf16), "fp8": line(0.5)}, error=error)
    found, said, record = run(gpu)
    assert found == status and [rows for arm, rows, _ in gpu.ran if arm == "bf16"] == ran
    assert gpu.ran[-1] == ("fp8", 8, True) and record.results["speed"]["arms"]["fp8"]
    assert ("BF16 (speed) failed" in said) == bool(status)


def test_micro_batches_stay_and_their_sequences_are_halved(run):
    gpu = Gpu({"bf16": line(0.1), "fp8": line(2.4)})  # with 4 sequences at a time 12.1 GiB
    _, _, record = run(gpu, "speed.train.accumulation=2", "speed.train.batch_size=8")
    assert gpu.ran == [("bf16", 4, True), ("fp8", 4, None), ("fp8", 2, True)]
    config = read_run(record.path / "speed" / "fp8").config
    assert (config["batch_size"], config["accumulation"]) == (4, 2)


def test_each_arm_at_its_largest_batch(run):
    gpu = Gpu({"bf16": line(0.5), "fp8": line(0.3, more=0.1)})  # 15 and 26 fit
    status, _, record = run(gpu, LARGEST)
    assert status == 0 and [each[:2] for each in gpu.ran if each[2]] == [("bf16", 15), ("fp8", 26)]
    assert [timed for *_, timed in gpu.ran].count(True) == 2, "a try that shows that more fits is not timed"
    results = record.results
    labels = [row["label"] for row in results["speed"]["arms"].values()]
    assert labels == ["BF16 with 15 sequences", "FP8 with 26 sequences"]
    tries = results["tries"]["bf16"]
    assert tries[0] == {"rows": 8, "fitted": True, "need": 6.5 * GIB, "rest": 2 * GIB, "short": 0, "gib": HAVE}
    assert bundle.state(record.path) == "whole"


def test_one_that_fits_only_by_giving_memory_back_in_each_step_is_not_timed(run):
    gpu = Gpu({"bf16": line(0.5), "fp8": line(0.3)}, calm=9.0)  # 13 and 21 are calm, 15 and 25 fit
    status, _, record = run(gpu, LARGEST)
    assert status == 0 and [each[:2] for each in gpu.ran if each[2]] == [("bf16", 13), ("fp8", 21)], gpu.ran
    assert ("bf16", 15, False) in gpu.ran
    assert all(row["shortages"] == 0 for row in record.results["speed"]["arms"].values())


def test_the_rank_that_needs_most_decides(run):
    gpu = Gpu({"bf16": line(0.5), "fp8": line(0.5)}, worse=1.0)  # of 15 sequences, two do not fit there
    run(gpu, LARGEST, arms=["bf16"])
    assert gpu.ran[-1] == ("bf16", 13, True)


def test_by_default_a_short_batch_is_timed_and_shown(run):
    _, _, record = run(Gpu({"bf16": line(0.5), "fp8": line(0.5)}, calm=5.0))
    assert [(row["batch"], row["shortages"]) for row in record.results["speed"]["arms"].values()] == [(8, 10)] * 2


def test_a_killed_search_repeats_no_try_that_the_record_has(run, tmp_path):
    gpu = Gpu({"bf16": line(0.5), "fp8": line(0.4)})

    def killed() -> None:
        if len(gpu.ran) in (1, 3):  # in the first batch of the first call, and in the second of the next
            raise KeyboardInterrupt

    gpu.after = killed
    seen = "speed", "BF16", tmp_path / "out" / "speed" / "bf16"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run(gpu, LARGEST)
        assert follow.line(*seen) == "", "a batch that was tried is no arm that is finished"
    status, _, record = run(gpu, LARGEST)
    assert follow.line(*seen).startswith("BF16 (speed): finished, 2,400 tokens/s")
    assert status == 0 and [rows for arm, rows, _ in gpu.ran if arm == "bf16"] == [8, 8, 14, 14, 15]
    assert [each[:2] for each in gpu.ran if each[2]] == [("bf16", 15), ("fp8", 18)]
    assert [each["rows"] for each in record.results["tries"]["bf16"]] == [8, 14, 15]


@pytest.mark.parametrize("each, first, rest", [(0.5, ("bf16", 8, False), [14, 15]), (1.2, ("bf16", 8, None), [4, 6])])
def test_the_budget_ends_a_search_in_order_and_the_next_call_goes_on(run, each, first, rest):
    clock = [0.0]

    def short(*given):
        return Budget(*given, clock=lambda: clock[0])

    gpu = Gpu({"bf16": line(each), "fp8": line(0.4)})
    gpu.after = lambda: clock.__setitem__(0, clock[0] + 61.0 - REPORT_SECONDS)
    status, _, record = run(gpu, LARGEST, budget_minutes=1, patches={"Budget": short})
    assert status == 3 and gpu.ran == [first] and record.status == "paused"
    status, _, record = run(gpu, LARGEST, arms=["bf16"])
    assert status == 0 and [rows for _, rows, _ in gpu.ran[1:]] == rest
    (record.path / "speed" / "bf16" / "run.json").unlink()  # as if its window had been paused
    _, _, record = run(gpu, LARGEST, arms=["bf16"])
    assert gpu.ran[-1] == gpu.ran[-2] and [each["rows"] for each in record.results["tries"]["bf16"]] == [8, *rest]


def test_the_tries_are_in_the_minutes_that_are_shown_before():
    plain, largest = (load_preset("h100", more) for more in ([], ["speed.batch=largest"]))
    one = predict(plain, "speed", "bf16", 79.2).predicted_s
    assert predict(largest, "speed", "bf16", 79.2).predicted_s == pytest.approx(one + 3 * (24 + 3 * 8 * 4096 / 72000))
    assert predict(largest, "speed", "bf16", 79.2, 1, 2).predicted_s == pytest.approx(one + 24 + 3 * 8 * 4096 / 72000)
    assert predict(largest, "speed", "bf16", 79.2, 1, 4).predicted_s == pytest.approx(one)


def test_another_gpus_tries_do_not_count(run, monkeypatch):
    gpu = Gpu({"bf16": line(1.2), "fp8": line(0.5)})
    run(gpu, arms=["bf16"])
    before, _ = len(gpu.ran), monkeypatch.setattr("tests.compare.small_gpu.HAVE", 20.0)
    run(Gpu(gpu.needs, room=20.0, ran=gpu.ran), arms=["bf16"])
    assert gpu.ran[before:] == [("bf16", 8, True)]


def test_where_no_largest_batch_can_be_found_one_sentence_says_so(tmp_path, monkeypatch):
    toml, out = tmp_path / "micro.toml", tmp_path / "out"
    toml.write_text(TEXT)
    with pytest.raises(LabError, match="a CPU has no memory of its own"):
        compare.compare(compare.Request(str(toml), out=out, settings=[LARGEST]))
    with pytest.raises(LabError, match="lab scaling gives each GPU the same work"):
        scaling(compare.Request(str(toml), out=out, settings=[LARGEST]), "1,2")
    monkeypatch.setattr("labkit.compare.plan.gpu_memory_gib", lambda preset: HAVE)
    monkeypatch.setattr("labkit.compare.plan.under_torchrun", lambda: True)
    monkeypatch.setenv("WORLD_SIZE", "1")
    chosen = loaded(tmp_path, TEXT, LARGEST)
    with pytest.raises(LabError, match="torchrun's ranks are no fresh processes"):
        make_plan(chosen, ["bf16"], explicit=True, out=out, fresh=False, parts=("speed",))
    assert not out.exists()


def test_what_a_try_needs_counts_what_the_driver_holds_beside_the_allocator(monkeypatch):
    """A card of 80 GiB of which 64 are taken, 60 of them by the allocator, that gave its tensors 55 at most."""
    shown = {"mem_get_info": (16, 80), "memory_reserved": 60, "max_memory_allocated": 55, "memory_allocated": 13}
    for name, value in shown.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert measure.needed("cuda:0") == {"need": 55 + 4, "rest": 13 + 4}


@pytest.mark.thorough
def test_each_try_is_a_fresh_process(tmp_path, monkeypatch):
    """Real trainings: what ran out of memory is gone with its process."""
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SMALL_GPU", "9.5")
    monkeypatch.setattr(session, "arm_on_rank", on_rank)
    monkeypatch.setattr("labkit.compare.plan.gpu_memory_gib", lambda preset: HAVE)
    monkeypatch.setattr("labkit.compare.figures.draw_all", lambda data, folder=None, trouble=None: [])
    (tmp_path / "micro.toml").write_text(TEXT)
    request = compare.Request(str(tmp_path / "micro.toml"), ["bf16"], tmp_path / "out", [LARGEST], part="speed")
    assert compare.compare(request, Console(quiet=True)) == 0
    tries = [json.loads(each) for each in (tmp_path / "out" / "pids").read_text().splitlines()]
    assert [rows for _, rows, _ in tries] == [8, 4, 7] and len({pid for *_, pid in tries}) == 3
    row = read_run(tmp_path / "out").results["speed"]["arms"]["bf16"]
    assert row["batch"] == 7 and row["tokens_per_s"] > 0 and row["label"] == "BF16"
