"""The page's speed section: what a renter reads first, in one unit; the rest behind a fold; the clock if known."""

import re

import pytest

from labkit.compare.report import report
from labkit.compare.speed_verdict import judge_speed
from labkit.record.measure import efficiency
from labkit.record.meter import Sample, summarise
from labkit.record.run import RunRecord
from labkit.record.schema import SpeedResults, TimedRow
from tests.compare import synthetic
from tests.compare.test_report import Tags, words

RATES = {"bf16": 70_000.0, "fp8": 91_000.0}
TOKENS = 20 * 4096  # of a step
KERNELS = {"span_ms": 900.0, "classes_ms": {"GEMM fp8": 700.0, "idle": 200.0}, "evidence": {"fp8_gemm": True}}


def row(name: str, **more) -> TimedRow:
    step = TOKENS / RATES[name]
    shown = efficiency(RATES[name], {"causal": 7e9, "full": 8e9}, "NVIDIA H200")
    times = {"tokens_per_s": RATES[name], "step_p10": 0.9 * step, "step_p50": step, "step_p90": 1.2 * step}
    about = {"label": synthetic.LABELS[name], "role": "baseline" if name == "bf16" else "candidate", "library": "plain"}
    shape = {"batch": 20, "seq_len": 4096, "tokens_step": TOKENS, "width": 2048, "steps": 30, "converted": 0}
    memory = {"peak": 60 * 2**30}
    rest = {"kernels": None, "memory": memory, "flops_per_s": shown.flops_per_s, "mfu": shown.mfu}
    return TimedRow.model_validate({**about, **times, **shape, **rest, "mfu_note": shown.note, **more})


def speed(**of_fp8) -> SpeedResults:
    rows = {"bf16": row("bf16"), "fp8": row("fp8", **of_fp8)}
    return SpeedResults(arms=rows, verdict=judge_speed(rows))


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Gives the page's text for these results of the speed part."""
    monkeypatch.setattr("labkit.compare.figures.draw_all", lambda data, folder=None, trouble=None: [])
    folder = synthetic.compare(tmp_path / "run", ("bf16", "fp8"), gpu=True, steps=20, layers=1)

    def drawn(speed: SpeedResults, price: float | None = None) -> str:
        call = {"began": 0, "seconds": 60.0, "cost": None, "price_per_hour": price, "items": []}
        with RunRecord.open(folder) as record:
            record.results(speed=speed, calls=[call])
        return report(folder).read_text()

    return drawn


def section(text: str) -> tuple[str, str]:
    """(what is seen at once of the speed section, what is folded away)."""
    whole = text[text.index("<h2>Speed</h2>") :]
    whole = whole[: whole.index("</section>")]
    folded = re.findall(r"(?s)<details>.*?</details>", whole)
    return re.sub(r"(?s)<details>.*?</details>", "", whole), " ".join(folded)


def line(table: str, label: str) -> list[str]:
    """The cells of this arm's first line."""
    found = re.search(rf'(?s)<tr><th scope="row">{re.escape(label)}.*?</tr>', table)
    assert found, label
    return [words(cell) for cell in re.findall(r"(?s)<td.*?</td>", found.group())]


def test_a_billion_tokens_have_a_price_where_the_hour_has_one(page):
    seen, _ = section(page(speed(), price=3.0))
    for arm, name in (("BF16", "bf16"), ("FP8 tensorwise", "fp8")):
        assert f"{3 / 3600 * 1e9 / RATES[name]:,.2f}" in line(seen, arm)  # 11.90 and 9.16
    assert "a billion tokens cost" not in section(page(speed()))[0]


def test_clock_and_watts_are_there_where_the_record_has_them(page):
    meter = summarise([Sample(1980, 400.0, 700.0, False), *[Sample(1608, 699.0, 700.0, True)] * 9])
    text = page(speed(meter=meter))
    seen, _ = section(text)
    table = seen[seen.index("Clock and power") : seen.index("Peak memory")]
    cells = line(table, "FP8 tensorwise")
    assert cells == ["1,608 1,608 to 1,645", "699", "700", "9 of 10"]
    assert 'scope="row">BF16' not in table, "of that arm there is no reading"
    assert Tags(text).open == []
    assert "Clock and power" not in page(speed()), "records from before have none"
