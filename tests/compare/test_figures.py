"""The pictures: right curves from the record, words computed from the data, nothing that relies on colour alone."""

import math
import re
from itertools import pairwise

import pytest

from labkit.compare.arms import arm_rows, split_tensor, worst_sqnr
from labkit.compare.figures import draw_all, loss, rounding, scales
from labkit.record import plotting
from labkit.record.read import read_run
from labkit.record.schema import Sqnr, Verdict
from tests.compare import synthetic


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three comparisons of short runs: the broken arm is worse, explodes, becomes NaN."""
    where = tmp_path_factory.mktemp("runs")
    return {
        kind: synthetic.compare(where / kind, explode=kind, steps=60, layers=2) for kind in ("gap", "blowup", "nan")
    }


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


def test_every_picture_is_written_with_alt_text(runs, tmp_path):
    pictures = draw_all(read_run(runs["gap"]), tmp_path)
    names = [p.name for p in pictures]
    assert names[:4] == ["answer", "loss", "gap", "speed-memory"] and {
        "sqnr",
        "rounding",
        "scales-fp8",
        "heat-fp8",
    } <= set(names)
    assert "heat-broken" not in names  # its scale never moves: nothing to show
    for picture in pictures:
        assert picture.png.read_bytes()[:4] == b"\x89PNG" and picture.svg.read_text().lstrip().startswith("<?xml")
        assert len(picture.alt) > 30 and "nan" not in picture.alt.lower(), picture.alt


def test_matplotlib_settings_and_pyplot_are_left_alone(runs, tmp_path):
    import sys

    import matplotlib

    loaded = "matplotlib.pyplot" in sys.modules
    mine = {"font.size": 17.0, "axes.grid": False, "svg.fonttype": "none"}
    with matplotlib.rc_context(mine):
        loss.losses(arm_rows(read_run(runs["gap"])), tmp_path)
        assert {key: matplotlib.rcParams[key] for key in mine} == mine
    assert ("matplotlib.pyplot" in sys.modules) == loaded  # a notebook's figures and backend are not touched


def test_pictures_are_the_same_bytes_every_time(runs, tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        loss.losses(arm_rows(read_run(runs["gap"])), tmp_path / folder)
    assert (tmp_path / "a" / "loss.svg").read_bytes() == (tmp_path / "b" / "loss.svg").read_bytes()
    assert (tmp_path / "a" / "loss.png").read_bytes() == (tmp_path / "b" / "loss.png").read_bytes()


def test_the_svg_has_a_dark_theme_for_every_named_colour(runs, tmp_path):
    svg = loss.losses(arm_rows(read_run(runs["gap"])), tmp_path).svg.read_text()
    used = set(re.findall(r"var\(--c([0-9a-f]{6})\)", svg))
    assert used
    rule = r"<style>:root\{(.*?)\}@media screen and \(prefers-color-scheme:dark\)\{:root\{(.*?)\}\}"
    light, dark = re.search(rule, svg).groups()
    for color in used:
        assert f"--c{color}:#{color};" in light and f"--c{color}:{plotting.DARK['#' + color]};" in dark
    assert not re.findall(r"(?:fill|stroke): #(?!000000|ffffff)[0-9a-f]{6}", svg)


def test_arms_differ_in_dash_and_marker_not_only_in_colour():
    roles = {"a": "baseline", "b": "twin", "c": "candidate", "d": "candidate", "e": "candidate", "f": "broken"}
    look = plotting.styles(roles)
    assert len({str(s.dash) + s.mark for s in look.values()}) == len(roles)
    assert len({s.mark for s in look.values()}) == len(roles)
    assert len({s.hatch for s in look.values()}) == len(roles)


def test_losses_hold_the_record(runs, tmp_path, monkeypatch):
    arms = arm_rows(read_run(runs["gap"]))
    _, fig = drawn_by(monkeypatch, loss.losses, arms, tmp_path)
    held = {tuple(line.get_ydata()) for line in fig.axes[1].get_lines()}
    assert held == {tuple(v for _, v in arm.series("heldout")) for arm in arms.values()}
    labels = " ".join(" ".join(texts(fig.axes[1])).split())
    for arm in arms.values():  # each line is named at its end, with its last value
        assert f"{arm.label} {arm.val_loss:.4f}" in labels
    assert "nats" in fig.axes[0].get_ylabel() and fig.axes[1].get_xlabel() == "step"


@pytest.mark.parametrize("kind, says", [("blowup", "up to "), ("nan", "not finite from step 30")])
def test_a_broken_arm_does_not_squeeze_the_others(runs, tmp_path, monkeypatch, kind, says):
    arms = arm_rows(read_run(runs[kind]))
    _, fig = drawn_by(monkeypatch, loss.losses, arms, tmp_path)
    low, high = fig.axes[1].get_ylim()
    sane = [v for name in ("bf16", "fp8") for _, v in arms[name].series("loss")]
    assert high < max(sane) + 1 and low > min(sane) - 1  # the picture belongs to the arms that behave
    assert any(says in text and "broken" in text for text in texts(fig.axes[1]))
    crosses = [line for line in fig.axes[1].get_lines() if line.get_marker() == "X" and len(line.get_xdata()) == 1]
    assert len(crosses) == 1 and list(crosses[0].get_ydata()) == [1.0]


def test_gap_shows_the_band_and_names_the_threshold(runs, tmp_path, monkeypatch):
    data = read_run(runs["gap"])
    arms, verdict = arm_rows(data), data.comparison.results.verdict
    _, fig = drawn_by(monkeypatch, loss.gap, arms, verdict, tmp_path)
    ax, edge = fig.axes[0], verdict.band.high
    assert ax.get_yscale() == "symlog"  # 1 % and 0.01 % in one picture
    ticks = {round(t, 9): text.get_text() for t, text in zip(ax.get_yticks(), ax.get_yticklabels())}
    assert ticks[round(edge, 9)].endswith(" %") and ticks[0.0] == "0" and ticks[round(-edge, 9)][0] == "\N{MINUS SIGN}"
    assert any("3 times what the BF16 twin gives" in text for text in texts(ax))
    assert any("counted from here" in text for text in texts(ax))
    drawn = [list(line.get_ydata()) for line in ax.get_lines()]
    assert [g for _, g in verdict.arms["fp8"].gap] in drawn


def test_gap_survives_infinite_gaps_and_a_missing_band(runs, tmp_path, monkeypatch):
    arms = arm_rows(read_run(runs["nan"]))
    arms["broken"].judged.gap = [(s, g if s < 40 else math.inf) for s, g in arms["broken"].gaps]
    picture, fig = drawn_by(monkeypatch, loss.gap, arms, Verdict(), tmp_path)
    assert all(map(math.isfinite, fig.axes[0].get_ylim()))
    assert "becomes not finite" in picture.alt and any("not finite from step" in text for text in texts(fig.axes[0]))
    assert loss.gap(arm_rows(read_run(runs["gap"] / "arms" / "fp8")), Verdict(), tmp_path) is None


def test_labels_at_line_ends_never_overlap_and_stay_beside_the_axes():
    from matplotlib.text import Text

    with plotting.look() as figure:
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
    assert boxes[0].y0 > frame.y0 - 12 and boxes[-1].y1 < frame.y1 + 12


def test_scales_are_drawn_by_role_with_their_extremes_named(runs, tmp_path, monkeypatch):
    arm = arm_rows(read_run(runs["gap"]))["fp8"]
    picture, fig = drawn_by(monkeypatch, scales.scales, arm, tmp_path, "-fp8")
    assert [ax.get_title("left") for ax in fig.axes[:3]] == ["input", "weight", "grad"]
    last = arm.scales()[-1][1]
    of_inputs = {t: stat["scale"] for t, stat in last.items() if t.endswith(".input")}
    highest = max(of_inputs, key=of_inputs.get)
    layer, linear, _ = split_tensor(highest)
    assert f"{linear.rpartition('.')[2]}\nlayer {layer}" in texts(fig.axes[0])
    ends = sorted(line.get_ydata()[-1] for line in fig.axes[0].get_lines())
    assert ends[-1] == pytest.approx(math.log2(of_inputs[highest]))
    spans = {round(ax.get_ylim()[1] - ax.get_ylim()[0], 6) for ax in fig.axes[:3]}
    assert len(spans) == 1  # slopes in a row can be compared
    assert "input from 2^" in picture.alt


def test_heat_map_is_relative_to_the_first_probe(runs, tmp_path, monkeypatch):
    arm = arm_rows(read_run(runs["gap"]))["fp8"]
    name = "layers.1.ffn.w2.grad"
    first = arm.data.steps[9]["scales"][name]["scale"]
    for step in arm.data.steps:  # one tensor's scale falls to a sixteenth after step 30
        if "scales" in step and step["step"] > 30:
            step["scales"][name]["scale"] = first / 16
    _, fig = drawn_by(monkeypatch, scales.heat, arm, tmp_path)
    grid = fig.axes[2].get_images()[0].get_array()
    assert grid.shape == (14, 6) and grid[:, 0].tolist() == [0] * 14
    assert grid[13, -1] == pytest.approx(-4)


def test_sqnr_marks_the_worst_tensor_and_what_rounding_alone_gives(runs, tmp_path, monkeypatch):
    arms = {n: a for n, a in arm_rows(read_run(runs["gap"])).items() if a.scales()}
    look = plotting.styles({n: a.role for n, a in arms.items()})
    picture, fig = drawn_by(monkeypatch, rounding.sqnr, arms, look, tmp_path)
    last = arms["broken"].scales()[-1][1]
    worst = min(last, key=lambda t: last[t]["sqnr"])
    assert f"worst {worst} with {last[worst]['sqnr']:.1f} dB" in picture.alt
    assert any(f"{last[worst]['sqnr']:.1f} dB" in text for text in texts(fig.axes[1]))


def test_a_tensor_that_lost_nothing_does_not_flatten_the_picture(runs, tmp_path, monkeypatch):
    """A gradient that is all zero is cast without error, at 200 dB: reported in the note, not drawn."""
    arms = {name: arm for name, arm in arm_rows(read_run(runs["gap"])).items() if name == "fp8"}
    last = arms["fp8"].scales()[-1][1]
    exact = [tensor for tensor in last if tensor.endswith(".grad")][:3]
    for tensor in exact:
        last[tensor]["sqnr"] = 200.0
    look = plotting.styles({"fp8": "candidate"})
    picture, fig = drawn_by(monkeypatch, rounding.sqnr, arms, look, tmp_path)
    assert "3 tensors that lost nothing" in picture.note and fig.axes[0].get_ylim()[1] < 60
    assert max(max(line.get_ydata()) for line in fig.axes[0].get_lines()) < 60


def test_an_arm_that_presets_share_looks_the_same_beside_whichever_others():
    one = plotting.styles({"bf16": "baseline", "te-current": "candidate", "mine": "candidate"})
    other = plotting.styles({"mine": "candidate", "te-delayed": "candidate", "te-current": "candidate"})
    assert one["te-current"] == other["te-current"] and len(set(other.values())) == 3
    everybody = plotting.styles(dict.fromkeys((*plotting.KNOWN, "a", "b", "c"), "candidate"))
    assert len({(style.mark, style.hatch) for style in everybody.values()}) == 10
    assert len({everybody[name].color for name in plotting.KNOWN}) == len(plotting.KNOWN)


def test_an_odd_record_costs_its_picture_and_not_the_report(runs, tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("odd")

    monkeypatch.setattr(loss, "losses", fail)
    trouble = []
    pictures = draw_all(read_run(runs["gap"]), tmp_path, trouble)
    assert trouble == ["The picture of the losses could not be drawn (ValueError: odd)."]
    assert [picture.name for picture in pictures[:2]] == ["answer", "gap"]
    with pytest.raises(ValueError, match="odd"):
        draw_all(read_run(runs["gap"]), tmp_path)


def test_worst_sqnr_takes_outputs_over_all_probes_and_nan_first():
    probes = [(1, {"a.output": {"sqnr": 9.0}, "a.input": {"sqnr": 1.0}}), (2, {"a.output": {"sqnr": 12.0}})]
    assert worst_sqnr(probes) == Sqnr(tensor="a.output", db=9.0, step=1)
    assert worst_sqnr([(1, {"a.input": {"sqnr": 30.0}, "b.input": {"sqnr": math.nan}})]).tensor == "b.input"
    assert worst_sqnr([(1, {"a.input": {"scale": 1.0}})]) is None
