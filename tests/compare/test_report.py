"""The page: self-contained, safe, and it says what the record says, no more. Also of runs that were cut short."""

import base64
import html
import math
import re
import shutil
from html.parser import HTMLParser

import pytest

from labkit.compare.arms import arm_rows
from labkit.compare.report import _events, missing, report
from labkit.errors import LabError
from labkit.record.read import read_run
from labkit.record.run import RunRecord
from tests.compare.comparing import ROOT, training


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a finished comparison, as text."""
    folder = tmp_path_factory.mktemp("pass") / "run"
    shutil.copytree(ROOT / "results" / "2026-11-23-cpu-demo", folder)
    return report(folder).read_text()


@pytest.fixture
def no_pictures(monkeypatch):
    """For tests of the words: drawing takes most of a report's time."""
    monkeypatch.setattr("labkit.compare.figures.draw_all", lambda data, folder=None, trouble=None: [])


def words(page: str) -> str:
    """What a reader sees, in one line."""
    page = re.sub(r"(?s)<style>.*?</style>|<wbr>", "", page)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


class Tags(HTMLParser):
    """All start tags with attributes; void elements need no end."""

    def __init__(self, page):
        super().__init__()
        self.found, self.open = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


def test_the_page_is_one_file_and_asks_for_nothing(page):
    text, tags = page, Tags(page)
    assert tags.open == []
    names = {tag for tag, _ in tags.found}
    assert not names & {"script", "link", "iframe", "object", "embed", "form", "base"}
    for tag, attributes in tags.found:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} {name}"
            if name in ("src", "href"):
                assert value.startswith("data:image/svg+xml;base64,")
    assert not re.findall(r"url\(|@import", text)
    policy = next(a["content"] for t, a in tags.found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert text.count("<h1") == 1 and ("html", {"lang": "en"}) in tags.found
    assert any(a.get("name") == "viewport" and a["content"].startswith("width=device-width") for _, a in tags.found)
    assert {"screen and (prefers-color-scheme: dark)", "print"} <= {*re.findall(r"@media (.*) \{", text)}


def test_pictures_are_inside_with_alt_text_and_ask_for_nothing_either(page):
    images = [a for t, a in Tags(page).found if t == "img"]
    assert len(images) == 4
    for image in images:
        assert len(image["alt"]) > 30
        svg = base64.b64decode(image["src"].split(",", 1)[1]).decode()
        assert "<script" not in svg
        # Names of schemas are no requests; references inside the file start with "#".
        assert not [u for u in re.findall(r"(?:href|src)=\"([^\"]*)\"", svg) if not u.startswith(("#", "data:"))]


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> $x_{$ & {{ 7 * 7 }}"


def test_hostile_text_in_a_record_stays_text(tmp_path):
    folder = tmp_path / "run"
    pair, hardware = {HOSTILE: HOSTILE}, {"os": HOSTILE, "gpus": [], "cpu": {"model": HOSTILE}}
    about = {"kind": "compare", "command": HOSTILE, "hardware": hardware, "config": {"title": HOSTILE, **pair}}
    record = RunRecord.create(folder, **about, seeds=pair, extra=HOSTILE)
    training(folder / "arms" / "bf16", {10: 4.0, 20: 3.0})
    with RunRecord.open(folder / "arms" / "bf16") as arm:
        arm.event(HOSTILE, step=3, message=HOSTILE)
        conversion = {"converted": [HOSTILE], "skipped": pair, "module_type": HOSTILE, "note": HOSTILE}
        arm.update(conversion=conversion, evidence={HOSTILE: pair}, corpus=pair)
        stat = {"scale": 1.0, "amax": 1.0, "overflow": 1.0, "underflow": 0.0, "sqnr": 3.0}
        scales = {f"layers.0.{HOSTILE}.input": stat}
        arm.step(step=21, loss=3.0, tokens=1, seconds=1.0, heldout=3.0, scales=scales)
    verdict = dict.fromkeys(("word", "sentence", "statistic"), HOSTILE) | {"reasons": [HOSTILE]}
    verdict["band"] = {"name": HOSTILE, "threshold": 1.0, "low": -1, "high": 1}
    verdict["arms"] = {"bf16": {"gap": [[10, 0.5], [20, 2.0]], "value": HOSTILE, "word": HOSTILE}}
    arms = {"bf16": dict.fromkeys(("label", "role", "status", "note"), HOSTILE)}
    record.finish(results={"arms": arms, "verdict": verdict})
    text = report(folder).read_text()
    tags = Tags(text)
    assert tags.open == []
    assert [tag for tag, _ in tags.found if tag in ("img", "script")] == ["img"] * 3  # "$x_{$" is no formula either
    assert all(a.get("src", "data:").startswith("data:") for _, a in tags.found)
    assert not any(name.startswith("on") for _, attributes in tags.found for name in attributes)
    assert HOSTILE in html.unescape(text) and "<script>" not in text


# ---- runs that were cut short


def test_a_killed_comparison_says_what_is_missing(tmp_path, no_pictures):
    folder = tmp_path / "run"
    statuses = {"bf16": "finished", "fp8": "running", "broken": "pending"}
    about = {name: {"label": name, "role": "candidate", "status": status} for name, status in statuses.items()}
    record = RunRecord.create(folder, kind="compare", command="c", hardware={})
    record.results(arms=about)
    record.close()
    for name, steps in (("bf16", 4), ("fp8", 2)):
        losses = dict.fromkeys(range(1, steps + 1), 3.0)
        training(folder / "arms" / name, losses, statuses[name], config={"steps": 4})
    with open(folder / "arms" / "fp8" / "steps.jsonl", "ab") as file:
        file.write(b'{"step": 30, "lo')
    data = read_run(folder)
    shown = missing(data, arm_rows(data))
    assert [each.partition(" (cut")[0] for each in shown] == [
        "The run was interrupted and did not reach its end; the same command resumes it.",
        "fp8 was interrupted, 2 of 4 steps done.",
        "fp8: 1 line of the record could not be read",
        "broken has not started.",
        "There is no verdict: it is made when the arms are done.",
        "No scales were recorded (probe_every is 0, or no FP8 arm ran).",
    ]
    assert all(each in words(report(folder).read_text()) for each in shown)


def test_a_comparison_with_nothing_in_it_gives_a_page(tmp_path, no_pictures):
    RunRecord.create(tmp_path / "run", kind="compare", command="lab compare", hardware={}).close()
    seen = words(report(tmp_path / "run").read_text())
    assert "No verdict yet" in seen and "The record holds no steps to draw." in seen
    assert not re.findall(r"NaN(?! events)", seen)


def test_skipped_and_failed_arms_say_why(tmp_path):
    te = {"label": "TE FP8", "role": "candidate", "status": "skipped", "note": "no GPU here"}
    bad = {"label": "Bad", "role": "candidate", "status": "failed", "note": "rank 1 died"}
    RunRecord.create(tmp_path, kind="compare", hardware={}).finish(results={"arms": {"te": te, "bad": bad}})
    data = read_run(tmp_path)
    shown = missing(data, arm_rows(data))
    assert shown[:2] == ["TE FP8 was skipped: no GPU here.", "Bad failed after 0 steps: rank 1 died."]


@pytest.mark.parametrize(
    "word, sign",
    [("pass", "Pass"), ("fail", "Fail"), ("no-power", "No power"), ("incomplete", "Incomplete"), ("odd", "Incomplete")],
)
def test_the_verdict_is_shown_in_words_not_only_in_colour(tmp_path, no_pictures, word, sign):
    verdict = {"word": word, "sentence": "It is so."}
    RunRecord.create(tmp_path / "run", kind="compare", command="c", hardware={}).finish(results={"verdict": verdict})
    text = report(tmp_path / "run").read_text()
    assert re.search(rf"<p class=\"word\">.*{sign}</p>", text) and verdict["sentence"] in text
    look = f"verdict {word if word != 'odd' else 'incomplete'}"
    assert ("section", {"class": look, "aria-label": "Verdict"}) in Tags(text).found


# ---- single runs, events, failures


def test_like_events_are_one_line_and_different_ones_are_not(tmp_path):
    with RunRecord.create(tmp_path / "run", kind="train", command="c", hardware={}) as record:
        for step in (3, 4, 5):
            record.event("skipped_step", step=step, message="not finite")
        record.event("checkpoint", step=6)
        record.event("skipped_step", step=7, message="not finite")
    data = read_run(tmp_path / "run")
    rows = [(e["kind"], e["first"], e["last"], e["count"]) for e in _events(arm_rows(data), data)]
    assert rows == [("skipped_step", 3, 5, 3), ("checkpoint", 6, 6, 1), ("skipped_step", 7, 7, 1)]


def test_a_full_disk_is_one_sentence_and_keeps_the_old_page(tmp_path, no_pictures, monkeypatch):
    training(tmp_path / "run", {1: 3.0})
    old = report(tmp_path / "run").read_text()
    assert report(tmp_path / "run").read_text() == old

    def fill_up(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fill_up)
    with pytest.raises(LabError, match="No space left on device"):
        report(tmp_path / "run")
    assert (tmp_path / "run" / "report.html").read_text() == old
    there = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert there == ["events.jsonl", "figures", "report.html", "run.json", "steps.jsonl"]


def test_steps_that_lack_fields_do_not_stop_the_report(tmp_path):
    with RunRecord.create(tmp_path / "run", kind="train", command="c", hardware={}) as record:
        record.step(step=1)
        record.step(step=2, loss=None, memory=None, scales={})
        record.step(step=3, loss=(loss := 2.0), tokens="many", seconds=None, scales={"w": "odd"}, heldout=math.inf)
    text = report(tmp_path / "run").read_text()
    assert Tags(text).open == [] and f"{loss:.4f}" in words(text)
