"""The pictures: right curves from the record, words computed from the data, nothing that relies on colour alone."""

import math
import re
import sys
from itertools import pairwise

import matplotlib
import pytest

from labkit.compare.arms import Arm, arm_rows, worst_sqnr
from labkit.compare.figures import draw_all, loss, rounding
from labkit.record import plotting
from labkit.record.read import read_run
from labkit.record.schema import Sqnr, Verdict
from tests.compare.comparing import ROOT

DEMO = ROOT / "results" / "2026-11-23-cpu-demo"


def arms_of(kind: str = "worse") -> dict[str, Arm]:
    """The first runs of a recorded comparison. The broken arm is worse, or it explodes, or becomes NaN at step 30."""
    arms = {name: arm for name, arm in arm_rows(read_run(DEMO)).items() if not arm.of}
    for line in arms["broken"].data.steps if kind != "worse" else ():
        for key in {"loss", "heldout"} & line.keys() if line["step"] >= 30 else ():
            line[key] = math.nan if kind == "nan" else line[key] * 1.16 ** (line["step"] - 29)
    return arms


def drawn_by(monkeypatch, draw, *given):
    """(picture, figure): the matplotlib figure that a function hands to `save`, which then is not written."""
    kept = {}

    def keep(fig, folder, name, title, alt, note=""):
        kept["fig"] = fig
        fig.draw_without_rendering()
        return plotting.Picture(name, title, folder / f"{name}.png", folder / f"{name}.svg", alt, note)

    monkeypatch.setattr(plotting, "save", keep)
    return draw(*given), kept.get("fig")


def texts(ax):
    return [t.get_text() for t in ax.texts]


def test_every_picture_is_written_with_alt_text(tmp_path):
    pictures = draw_all(read_run(DEMO), tmp_path)
    assert "interval" in pictures[0].note  # the answer's: its rows have one
    assert [p.name for p in pictures] == ["answer", "loss", "gap", "sqnr"]
    for picture in pictures:
        assert picture.png.read_bytes()[:4] == b"\x89PNG" and picture.svg.read_text().lstrip().startswith("<?xml")
        assert len(picture.alt) > 30 and "nan" not in picture.alt.lower(), picture.alt


def test_pictures_are_the_same_bytes_every_time_and_leave_a_notebooks_settings_alone(tmp_path):
    loaded = "matplotlib.pyplot" in sys.modules
    mine = {"font.size": 17.0, "axes.grid": False, "svg.fonttype": "none"}
    drawn = []
    with matplotlib.rc_context(mine):
        for _ in range(2):
            picture = loss.losses(arms_of(), tmp_path)
            drawn.append((picture.svg.read_bytes(), picture.png.read_bytes()))
        assert {key: matplotlib.rcParams[key] for key in mine} == mine
    assert drawn[0] == drawn[1] and ("matplotlib.pyplot" in sys.modules) == loaded


def test_the_svg_has_a_dark_theme_for_every_named_colour(tmp_path):
    svg = loss.losses(arms_of(), tmp_path).svg.read_text()
    used = set(re.findall(r"var\(--c([0-9a-f]{6})\)", svg))
    assert used
    rule = r"<style>:root\{(.*?)\}@media screen and \(prefers-color-scheme:dark\)\{:root\{(.*?)\}\}"
    light, dark = re.search(rule, svg).groups()
    light, dark = (dict(re.findall(r"--c(\w+):(#\w+);", part)) for part in (light, dark))
    assert all(light[color] == f"#{color}" and dark[color] == plotting.DARK[f"#{color}"] for color in used)
    assert not re.findall(r"(?:fill|stroke): #(?!000000|ffffff)[0-9a-f]{6}", svg)


def test_losses_hold_the_record(tmp_path, monkeypatch):
    arms = arms_of()
    _, fig = drawn_by(monkeypatch, loss.losses, arms, tmp_path)
    held = {tuple(line.get_ydata()) for line in fig.axes[1].get_lines()}
    assert held == {tuple(v for _, v in arm.series("heldout")) for arm in arms.values()}
    labels = " ".join(" ".join(texts(fig.axes[1])).split())
    for arm in arms.values():  # each line is named at its end, with its last value
        assert f"{arm.label} {arm.val_loss:.4f}" in labels
    assert "nats" in fig.axes[0].get_ylabel() and fig.axes[1].get_xlabel() == "step"


@pytest.mark.parametrize("kind, says", [("blowup", "up to "), ("nan", "not finite from step 30")])
def test_a_broken_arm_does_not_squeeze_the_others(tmp_path, monkeypatch, kind, says):
    arms = arms_of(kind)
    _, fig = drawn_by(monkeypatch, loss.losses, arms, tmp_path)
    low, high = fig.axes[1].get_ylim()
    sane = [v for name in ("bf16", "fp8") for _, v in arms[name].series("loss")]
    assert high < max(sane) + 1 and low > min(sane) - 1  # the picture belongs to the arms that behave
    assert any(says in text and arms["broken"].label in text for text in texts(fig.axes[1]))
    crosses = [line for line in fig.axes[1].get_lines() if line.get_marker() == "X" and len(line.get_xdata()) == 1]
    assert len(crosses) == 1 and list(crosses[0].get_ydata()) == [1.0]


def test_gap_shows_the_band_and_names_the_threshold(tmp_path, monkeypatch):
    data = read_run(DEMO)
    arms, verdict = arm_rows(data), data.comparison.results.verdict
    _, fig = drawn_by(monkeypatch, loss.gap, arms, verdict, tmp_path)
    ax, edge = fig.axes[0], verdict.band.high
    assert ax.get_yscale() == "symlog"  # 1 % and 0.01 % in one picture
    ticks = {round(t, 9): text.get_text() for t, text in zip(ax.get_yticks(), ax.get_yticklabels())}
    assert ticks[round(edge, 9)].endswith(" %") and ticks[0.0] == "0" and ticks[round(-edge, 9)][0] == "\N{MINUS SIGN}"
    assert any(verdict.band.name in text for text in texts(ax)) and verdict.from_step in [t.xy[0] for t in ax.texts]
    drawn = [list(line.get_ydata()) for line in ax.get_lines()]
    assert [g for _, g in verdict.arms["fp8"].gap] in drawn


def test_gap_survives_infinite_gaps_and_a_missing_band(tmp_path, monkeypatch):
    arms = arms_of("nan")
    arms["broken"].judged.gap = [(s, g if s < 40 else math.inf) for s, g in arms["broken"].gaps]
    picture, fig = drawn_by(monkeypatch, loss.gap, arms, Verdict(), tmp_path)
    assert all(map(math.isfinite, fig.axes[0].get_ylim()))
    lost = next(step for step, gap in arms["broken"].gaps if gap == math.inf)
    assert "becomes not finite" in picture.alt and any(text.endswith(f" {lost}") for text in texts(fig.axes[0]))
    assert loss.gap(arm_rows(read_run(DEMO / "arms" / "fp8")), Verdict(), tmp_path) is None


@pytest.mark.parametrize(
    "value, text",
    [
        *[(None, "not recorded"), (0.0, "0"), (-math.inf, "-infinite"), (12345.6, "12,346"), (999.6, "1000")],
        *[(-0.1234, "-0.123"), (12.345, "12.3"), (0.00012345, "0.000123"), (0.000012345, "1.23e-05")],
    ],
)
def test_a_number_has_three_digits(value, text):
    assert plotting.number(value) == text


def test_labels_at_line_ends_never_overlap_and_stay_beside_the_axes():
    from matplotlib.text import Text

    with plotting.styled() as figure:
        fig = figure(6, 3)
        ax = fig.subplots()
        ax.set(xlim=(0, 1), ylim=(0, 1))
        plotting.label_ends(ax, [(1, 0.01 * i, "name" if i % 2 else "two\nlines", "#005a9c") for i in range(8)])
        fig.draw_without_rendering()
        # The text alone: an annotation's own extent has its leader in it.
        boxes = sorted((Text.get_window_extent(t) for t in ax.texts), key=lambda box: box.y0)
        frame = ax.get_window_extent()
    for below, above in pairwise(boxes):
        assert below.y1 <= above.y0 + 1  # a pixel of tolerance: text boxes include line spacing
    assert abs(boxes[0].y0 - frame.y0) < 12 and boxes[-1].y1 < frame.y1 + 12  # all lines end at the bottom


def test_sqnr_marks_the_worst_tensor_and_leaves_out_those_that_lost_nothing(tmp_path, monkeypatch):
    """A gradient that is all zero is cast without error, at 200 dB: it would flatten the picture."""
    arms = arms_of()
    look = plotting.styles({n: a.role for n, a in arms.items()})
    for tensor, stat in arms["fp8"].scales()[-1][1].items():
        stat["sqnr"] = 200.0 if tensor.startswith("layers.0.") and tensor.endswith(".grad") else stat["sqnr"]
    picture, fig = drawn_by(monkeypatch, rounding.sqnr, arms, look, tmp_path)
    last = arms["broken"].scales()[-1][1]
    worst = min(last, key=lambda t: last[t]["sqnr"])
    assert f"worst {worst} with {last[worst]['sqnr']:.1f} dB" in picture.alt
    assert any(f"{last[worst]['sqnr']:.1f} dB" in text for text in texts(fig.axes[1]))
    assert "7 tensors that lost nothing" in picture.note and fig.axes[0].get_ylim()[1] < 60
    assert max(max(line.get_ydata()) for ax in fig.axes for line in ax.get_lines() if len(line.get_ydata())) < 60


def test_an_arm_that_presets_share_looks_the_same_beside_whichever_others():
    one = plotting.styles({"bf16": "baseline", "te-current": "candidate", "mine": "candidate"})
    other = plotting.styles({"mine": "candidate", "te-delayed": "candidate", "te-current": "candidate"})
    assert one["te-current"] == other["te-current"] and len(set(other.values())) == 3
    roles = {**dict.fromkeys((*plotting.KNOWN, "a", "b", "c"), "candidate"), "base": "baseline", "off": "broken"}
    everybody = plotting.styles(roles)
    for told_by in ("mark", "hatch"):  # not only the colour
        assert len({getattr(style, told_by) for style in everybody.values()}) == len(roles)
    assert len({everybody[name].color for name in plotting.KNOWN}) == len(plotting.KNOWN)


def test_an_odd_record_costs_its_picture_and_not_the_report(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise ValueError("odd")

    monkeypatch.setattr(loss, "losses", fail)
    trouble = []
    pictures = draw_all(read_run(DEMO), tmp_path, trouble)
    assert trouble == ["The picture of the losses could not be drawn (ValueError: odd)."]
    assert [picture.name for picture in pictures[:2]] == ["answer", "gap"]
    with pytest.raises(ValueError, match="odd"):
        draw_all(read_run(DEMO), tmp_path)


def test_worst_sqnr_takes_outputs_over_all_probes_and_nan_first():
    probes = [(1, {"a.output": {"sqnr": 9.0}, "a.input": {"sqnr": 1.0}}), (2, {"a.output": {"sqnr": 12.0}})]
    assert worst_sqnr(probes) == Sqnr(tensor="a.output", db=9.0, step=1)
    assert worst_sqnr([(1, {"a.input": {"sqnr": 30.0}, "b.input": {"sqnr": math.nan}})]).tensor == "b.input"
    assert worst_sqnr([(1, {"a.input": {"scale": 1.0}})]) is None
