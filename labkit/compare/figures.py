"""All pictures of a run: losses and paired gap (figures_loss.py), the number formats at work (figures_scales.py,
figures_sqnr.py), and here speed and memory, and the course of a single run.

Each function takes the arms and a folder, and returns a `Picture` or None when the record holds nothing to draw. What
each shows in one sentence (the alt text) is computed from the same data.
"""

from __future__ import annotations

import math
from pathlib import Path

from labkit.compare import figures_loss, figures_scales, figures_sqnr, figures_time
from labkit.compare.facts import Arm, arms_of, verdict_of
from labkit.record.plotting import (
    INK,
    MUTED,
    PAPER,
    WIDTH,
    Picture,
    finite,
    join,
    lines,
    look,
    number,
    save,
    styles,
    thin,
    ticks,
)
from labkit.record.read import RunData


def draw_all(data: RunData, folder: Path | None = None, trouble: list[str] | None = None) -> list[Picture]:
    """Every picture that the record has data for, written to figures/ of the run (or `folder`), in reading order.

    A record may hold anything. With a list `trouble` a picture that fails is left out and said there in a sentence;
    without it the error is raised. OSError (a full disk) is raised always."""
    folder = Path(folder or data.path / "figures")
    folder.mkdir(parents=True, exist_ok=True)
    arms = arms_of(data)
    single = data.run.get("kind") != "compare"
    probed = {name: arm for name, arm in arms.items() if arm.scales()}
    look_of = styles({name: arm.role for name, arm in arms.items()})
    todo = [("the losses", figures_loss.losses, arms, folder)]
    speed = (data.run.get("results") or {}).get("speed") or {}
    todo += [("the milliseconds", figures_time.milliseconds, speed["arms"], folder)] if speed.get("arms") else []
    where = " in the safety part" if speed.get("arms") else ""
    todo += (
        []
        if single
        else [
            ("the paired gap", figures_loss.gap, arms, verdict_of(data), folder),
            ("speed and memory", cost, arms, folder, where),
        ]
    )
    todo += [("the course of the run", course, arms["run"], folder)] if single else []
    todo += [
        ("SQNR", figures_sqnr.sqnr, probed, look_of, folder),
        ("overflow and underflow", figures_sqnr.rounding, probed, look_of, folder),
    ]
    for name, arm in probed.items():
        suffix = "" if single else "-" + "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
        todo += [
            (f"the scales of {arm.label}", figures_scales.scales, arm, folder, suffix),
            (f"the heat map of {arm.label}", figures_scales.heat, arm, folder, suffix),
        ]
    pictures = []
    for what, draw, *given in todo:
        try:
            pictures.append(draw(*given))
        except OSError:
            raise
        except Exception as error:
            if trouble is None:
                raise
            trouble.append(f"The picture of {what} could not be drawn ({type(error).__name__}: {error}).")
    return [picture for picture in pictures if picture is not None]


def cost(arms: dict[str, Arm], folder: Path, where: str = "") -> Picture | None:
    """Tokens/s (median step, with the 10th to 90th percentile) and peak memory of every arm, as bars. where: of which
    part this is, if there are two."""
    drawn = {name: arm for name, arm in arms.items() if arm.speed.tokens_per_s}
    if not drawn:
        return None
    look_of = styles({name: arm.role for name, arm in arms.items()})
    names = list(drawn)
    with look() as figure:
        fig = figure(WIDTH, 1.05 + 0.36 * len(names))
        left, right = fig.subplots(1, 2, sharey=True)
        fig.subplots_adjust(
            left=0.2, right=0.97, top=1 - 0.32 / fig.get_figheight(), bottom=0.5 / fig.get_figheight(), wspace=0.13
        )
        for row, name in enumerate(names):
            arm, style = drawn[name], look_of[name]
            rate, speed = arm.speed.tokens_per_s, arm.speed
            bar = {"height": 0.62, "color": PAPER, "edgecolor": style.color, "hatch": style.hatch, "linewidth": 1.3}
            left.barh(row, rate, **bar)
            spread = [rate * speed.step_p50 / speed.step_p90, rate * speed.step_p50 / speed.step_p10]
            left.plot(spread, [row, row], color=INK, linewidth=1.1, marker="|", markersize=5)
            _value(left, max(spread[1], rate), row, number(rate))
            if arm.peak_bytes:
                right.barh(row, arm.peak_bytes / 2**30, **bar)
                _value(
                    right,
                    max(arm.peak_bytes, arm.reserved_bytes or 0) / 2**30,
                    row,
                    f"{arm.peak_bytes / 2**30:.{1 if arm.reserved_bytes else 2}f}"
                    + (f" of {arm.reserved_bytes / 2**30:.1f} reserved" if arm.reserved_bytes else ""),
                )
            if arm.reserved_bytes:
                right.plot([arm.reserved_bytes / 2**30], [row], marker="|", color=INK, markersize=11, linewidth=0)
        left.set_yticks(range(len(names)), [lines(drawn[n].label, 22) for n in names], color=INK)
        left.invert_yaxis()
        left.set_title("tokens/s")
        right.set_title("peak memory of a rank (GiB)")
        for ax, most in (
            (left, max(a.speed.tokens_per_s * a.speed.step_p50 / a.speed.step_p10 for a in drawn.values())),
            (right, max(max(a.peak_bytes or 0, a.reserved_bytes or 0) for a in drawn.values()) / 2**30 or 1),
        ):
            ax.set_xlim(0, most * (2.1 if ax is right and any(a.reserved_bytes for a in drawn.values()) else 1.24))
            ax.grid(axis="y", visible=False)
            ax.tick_params(axis="y", length=0)
            ax.xaxis.set_major_locator(ticks(4))
            ax.xaxis.set_major_formatter(lambda v, _: f"{v:,.10g}")
        shown = [
            f"{a.label} {number(a.speed.tokens_per_s)} tokens/s"
            + (f" and {a.peak_bytes / 2**30:.2f} GiB" if a.peak_bytes else "")
            for a in drawn.values()
        ]
        note = (
            "Median step; the line spans the 10th to the 90th percentile; "
            f"the first {_warmup(drawn)} steps are left out."
        )
        if any(a.reserved_bytes for a in drawn.values()):
            note += " The tick on the memory bar: what the allocator reserved."
        return save(
            fig,
            folder,
            "speed-memory",
            f"Speed and memory{where}",
            f"Bars of throughput and peak memory: {join(shown)}.",
            note,
        )


def course(arm: Arm, folder: Path) -> Picture | None:
    """A single run's gradient norm, learning rate, throughput and memory over the steps; skipped steps are marked."""
    panels = [("grad_norm", "gradient norm", 1.0), ("lr", "learning rate", 1.0), ("tokens_per_s", "tokens/s", 1.0)]
    panels = [(title, [(s, v * unit) for s, v in arm.series(key)]) for key, title, unit in panels]
    memory = [
        (s["step"], s["memory"]["peak_bytes"] / 2**30)
        for s in arm.data.steps
        if isinstance(s.get("memory"), dict) and s["memory"].get("peak_bytes")
    ]
    panels = [(title, points) for title, points in [*panels, ("peak memory of a rank (GiB)", memory)] if points]
    if not panels:
        return None
    style = styles({"run": "single"})["run"]
    skipped = [s["step"] for s in arm.data.steps if s.get("skipped")]
    with look() as figure:
        rows = math.ceil(len(panels) / 2)
        fig = figure(WIDTH, 0.5 + 1.7 * rows)
        axes = fig.subplots(rows, 2, squeeze=False, sharex=True).ravel()
        fig.subplots_adjust(
            left=0.1,
            right=0.98,
            top=1 - 0.3 / fig.get_figheight(),
            bottom=0.45 / fig.get_figheight(),
            wspace=0.24,
            hspace=0.42,
        )
        for ax, (title, points) in zip(axes, panels):
            points = thin(points)
            ax.plot([s for s, _ in points], [v for _, v in points], **style.line(linewidth=1.3))
            ax.set_title(title)
            values = finite([v for _, v in points]) or [0.0]
            usual = sorted(values)[int(0.98 * (len(values) - 1))]
            ax.set_ylim(0, max(usual * 1.2, 1e-12))
            if max(values) > usual * 1.2:
                ax.annotate(
                    f"up to {number(max(values))}",
                    (0.99, 0.97),
                    xycoords="axes fraction",
                    ha="right",
                    va="top",
                    fontsize=8,
                    color=MUTED,
                )
            ax.yaxis.set_major_locator(ticks(4))
            ax.yaxis.set_major_formatter(lambda v, _: f"{v:,.10g}")
            for step in skipped:
                ax.axvline(step, ymax=0.06, color=INK, linewidth=1)
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for ax in axes[max(0, len(panels) - 2) : len(panels)]:
            ax.set_xlabel("step")
            ax.tick_params(labelbottom=True)
        last = join([f"{title} {number(points[-1][1])}" for title, points in panels])
        alt = f"Over {arm.steps} steps: {last} at the end; {len(skipped)} steps were skipped."
        return save(
            fig,
            folder,
            "course",
            "Course of the run",
            alt,
            "Short strokes at the bottom mark skipped steps." if skipped else "",
        )


def _warmup(arms: dict[str, Arm]) -> int:
    return max(arm.speed.warmup for arm in arms.values())


def _value(ax, x: float, y: float, text: str) -> None:
    ax.annotate(text, (x, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8.5, color=INK)
