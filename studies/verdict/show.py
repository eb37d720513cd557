"""How the studies of the verdict are shown on the pages: pictures, tables, sentences."""

from pathlib import Path
from typing import Any

from labkit.compare.arms import arm_rows
from labkit.compare.equal_loss import REACH, further_steps, slope
from labkit.compare.repeats import interval
from labkit.compare.statistic import ACCEPTED
from labkit.compare.table import FURTHER, of_answers
from labkit.compare.terminal import markdown_table
from labkit.record import plotting as plot
from labkit.record.read import RunData
from studies.verdict.operating import CHOSEN, COSTS, DESIGNS, GAPS, WORDS
from studies.verdict.repeated import Run

WEIGHT = DESIGNS[CHOSEN].weight
MARKS = {"bf16": "*", "none": "o", "stale": "D", "unscaled": "s", "mantissa": "^", "flush": "v", "e5m2": "P"}
NAMES = {"bf16": "BF16", "none": "correct FP8"}
APART = 0.028  # per cent: the marks of gaps that the axis does not reach, side by side


def draw(found: dict[str, Any], folder: Path, name: str) -> plot.Picture:
    """Draw the operating curve: how often each word is said, by the true gap; marks are the real faults."""
    looks = dict(zip(("different", "undecided", "same"), plot.styles(dict.fromkeys("abc", "candidate")).values()))
    with plot.styled() as figure:
        fig = figure(plot.WIDTH, 3.6)
        ax = fig.subplots()
        fig.subplots_adjust(left=0.085, right=0.8, top=0.9, bottom=0.14)
        for word, style in looks.items():
            line = [(point["gap"], 100 * point[word]) for point in found["curve"]]
            ax.plot(*plot.xy(line), **style.line())
            at = {"different": 0.4, "same": 0.1, "undecided": 0.25}[word]
            near = min(line, key=lambda p: abs(p[0] - at))
            below = {"xytext": (4, -13 if word == "different" else 6), "textcoords": "offset points"}
            ax.annotate(word, near, color=style.color, fontsize=9, **below)
        edge, seen, color = GAPS[-1] * 1.06, set(), looks["different"].color
        drawn = sorted((row for row in found["kinds"] if "rates" in row), key=lambda row: abs(row["gap"]))
        inside = sum(abs(row["gap"]) < edge for row in drawn)
        for place, row in enumerate(drawn):
            x = abs(row["gap"]) if place < inside else edge + APART * (place - inside + 0.5)
            low, high = row["rates"]["range"]["different"]
            ax.plot([x, x], [100 * low, 100 * high], color=color, linewidth=0.9, alpha=0.6)
            label = None if row["kind"] in seen else NAMES.get(row["kind"], row["kind"])
            seen.add(row["kind"])
            face = {"markerfacecolor": plot.PAPER, "markeredgecolor": color, "markersize": 5.5, "linewidth": 0}
            ax.plot([x], [100 * row["rates"]["different"]], marker=MARKS[row["kind"]], label=label, **face)
        ax.axvline(ACCEPTED, color=plot.MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
        ax.annotate("accepted ", (ACCEPTED, 95), ha="right", color=plot.MUTED, fontsize=8)
        end = edge + APART * (len(drawn) - inside)
        ax.axvspan(edge, end, color=plot.MUTED, alpha=0.1, linewidth=0)
        ax.set_xlim(-0.02, end)
        ax.set_xticks([tick / 10 for tick in range(int(10 * edge) + 1)])
        ax.set_ylim(-3, 103)
        ax.set_xlabel(f"true gap, either sign (%); shaded: {edge:.2f} and more, in order of size")
        ax.set_ylabel("comparisons (%)")
        ax.set_title("What the verdict says, by how large the gap is")
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8.5, title='"different" of')
        null = found["curve"][0]
        rates = [(p["gap"], 100 * p["different"]) for p in found["curve"] if p["gap"] in (0.25, 0.5)]
        words = [f"{rate:.0f} percent at {gap:g}" for gap, rate in rates]
        alt = (
            f"Curves over the true gap in percent. Without a gap the verdict is same in {100 * null['same']:.1f}, "
            f"undecided in {100 * null['undecided']:.1f} and different in {100 * null['different']:.1f} percent of "
            f"comparisons; it is different in {plot.join(words)}."
        )
        note = "Lines: correct FP8 moved by the gap. Marks: how often each kind was found; bars: in 90 % of pools."
        return plot.save(fig, folder, name, "Operating curve", alt, note)


def kinds_table(found: dict[str, Any]) -> str:
    """Write what the verdict said of each kind of run, as Markdown."""
    heads = ["kind", "runs", "true gap %", "spread %", *(f"{word} %" for word in WORDS), "interval holds it %"]
    heads += [f"further steps of {found['train']['steps']}", "their interval holds them %"]
    rows, layers = [], found["train"]["model"]["n_layers"]
    for row in sorted(found["kinds"], key=lambda row: abs(row["gap"])):
        blocks = f", {row['blocks']} of {layers} blocks" if 0 < row["blocks"] < layers else ""
        dose = "" if row["kind"] == "e5m2" else f" {row['dose']:.3g}"
        what = NAMES.get(row["kind"], f"{row['kind']}{dose}{blocks}")
        cells = [""] * 6
        if rates := row.get("rates"):
            cells = [_rate(rates, word) for word in (*WORDS, "covered")]
            cells += [f"{rates['steps']:+.1f}", f"{100 * rates['steps covered']:.1f}"]
        gap = f"{row['gap']:+.2f} ± {row['error']:.2f}"
        rows.append([what, str(row["runs"]), gap, f"{row['spread']:.2f}", *cells])
    return markdown_table(heads, rows)


def designs_table(found: dict[str, Any]) -> str:
    none, edge, half = (f"FP8 at {gap:g} %" for gap in (0.0, ACCEPTED, COSTS))
    columns = {
        "BF16: different %": ("BF16", "different"),
        "BF16: undecided %": ("BF16", "undecided"),
        "0: same %": (none, "same"),
        "0: different %": (none, "different"),
        "0: interval holds it %": (none, "covered"),
        f"{ACCEPTED:g}: different %": (edge, "different"),
        f"{COSTS:g}: different %": (half, "different"),
    }
    rows = [
        [row["design"], *(_rate(row[at], word) for at, word in columns.values()), f"{row[none]['runs']:.1f}"]
        for row in found["designs"]
    ]
    return markdown_table(["design", *columns, "runs at 0"], rows)


def costly(found: dict[str, Any]) -> list[dict[str, Any]]:
    """List the faults whose true gap is at least COSTS."""
    return [row for row in found["kinds"] if abs(row["gap"]) >= COSTS and "rates" in row]


def _rate(row: dict[str, Any], word: str) -> str:
    """Write "98.1 (95 to 100)", per cent."""
    low, high = row["range"][word]
    return f"{100 * row[word]:.1f} ({100 * low:.0f} to {100 * high:.0f})"


# ---- the same training on GPUs (studies.verdict.repeated)

ARMS = {"bf16": "BF16", "te-current": "TE FP8 current", "te-delayed": "TE FP8 delayed", "week16": "week 16's linear"}
ARMS |= {"fine": "all E5M2 (wrong)"}


def repeats_picture(found: dict[str, Any], folder: Path, name: str) -> plot.Picture:
    """Draw each run's gap from the mean of all BF16 runs, arm by arm, and the arm's mean."""
    ys: dict[str, list[float]] = {}
    for call, kind, seed, *losses in found["heldout"]:
        ys.setdefault(kind, []).append(Run(call, kind, seed, dict(zip(found["steps"], losses))).y)
    middle = sum(ys["bf16"]) / len(ys["bf16"])
    kinds = [kind for kind in ARMS if len(ys.get(kind, ())) > 1]
    style = plot.styles({"a": "candidate"})["a"]
    with plot.styled() as figure:
        fig = figure(plot.WIDTH, 0.46 * len(kinds) + 0.9)
        ax = fig.subplots()
        fig.subplots_adjust(left=0.25, right=0.98, top=0.9, bottom=0.17)
        ax.axvspan(-ACCEPTED, ACCEPTED, color=plot.MUTED, alpha=0.12, linewidth=0)
        ax.annotate("accepted ", (ACCEPTED, -0.45), ha="right", va="center", color=plot.MUTED, fontsize=8)
        for row, kind in enumerate(kinds):
            gaps = [y - middle for y in ys[kind]]
            ax.plot(gaps, [row + 0.12] * len(gaps), "o", color=style.color, markersize=4.5, alpha=0.55, linewidth=0)
            ax.plot([sum(gaps) / len(gaps)], [row - 0.16], marker="v", color=plot.INK, markersize=5, linewidth=0)
        ax.axvline(0, color=plot.MUTED, linewidth=0.8)
        ax.set_yticks(range(len(kinds)), [f"{ARMS[kind]}, {len(ys[kind])} runs" for kind in kinds])
        ax.set_ylim(len(kinds) - 0.5, -0.7)
        ax.set_xlabel("gap of the held-out loss from BF16's mean (%)")
        ax.set_title("Every run of 124M parameters, 400 steps")
        ranges = [
            f"{ARMS[kind]} {min(ys[kind]) - middle:+.2f} to {max(ys[kind]) - middle:+.2f} percent" for kind in kinds
        ]
        alt = f"A dot for each run's gap from the mean of BF16. By arm: {plot.join(ranges)}."
        note = "A dot is a run, a triangle the mean of a variant."
        return plot.save(fig, folder, name, "Every run", alt, note)


def at_equal_loss(found: dict[str, Any], timed: RunData) -> str:
    """Write, by arm that was timed, its gap over all runs in further steps, and its speed at equal loss, as Markdown."""
    heads = ["arm", "runs", "further steps [interval]", "x BF16's speed", "at equal loss [interval]"]
    return markdown_table(heads, [*equal_rows(found, timed).values()])


def equal_rows(found: dict[str, Any], timed: RunData) -> dict[str, list[str]]:
    rows = {}
    for kind, arm in arm_rows(timed).items():
        row = next((row for row in found["kinds"] if row["kind"] == kind and row.get("error")), None)
        if row and arm.times:
            low, high = (row["gap"] + sign * REACH * row["error"] for sign in (-1, 1))
            arm.further = further_steps(*_pace(found), row["gap"], low, high)
            steps, *_, speed = (column.cell(arm) for column in (FURTHER, *of_answers([arm], "BF16")[1:3]))
            rows[kind] = [arm.label, str(row["runs"]), steps, f"{arm.times:.2f}", speed]
    return rows


def steps_of(found: dict[str, Any], gap: float) -> float:
    """Find how many further steps a gap takes on BF16's mean curve."""
    curves, half = _pace(found)
    return gap * len(curves) / sum(slope(one, half) for one in curves)


def _pace(found: dict[str, Any]) -> tuple[list[dict[int, float]], int]:
    """(BF16's held-out losses, the first judged step)."""
    steps = found["steps"]
    return [dict(zip(steps, own)) for _, kind, _, *own in found["heldout"] if kind == "bf16"], max(steps) // 2 + 1


def repeats_table(found: dict[str, Any]) -> str:
    """Write, by arm, its runs, what the repetitions said, and how often a comparison drawn from all runs says each word."""
    heads = ["arm", "runs", "gap %", "spread %", "repetitions", *(f"drawn: {word} %" for word in WORDS)]
    rows = []
    for row in (row for arm in ARMS for row in found["kinds"] if row["kind"] == arm):
        rates = [_rate(row["rates"], word) for word in WORDS] if "rates" in row else ["", "", ""]
        gap = lies(found, row["kind"]) if row.get("error") else f"{row['gap']:+.2f}"
        spread = f"{row['spread']:.2f}" if "spread" in row else ""
        rows.append([ARMS[row["kind"]], str(row["runs"]), gap, spread, said(found, row["kind"]), *rates])
    return markdown_table(heads, rows)


def row_of(found: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(row for row in found["kinds"] if row["kind"] == kind)


def lies(found: dict[str, Any], kind: str) -> str:
    """Write "+0.05 ± 0.03": an arm's gap from BF16 over all its runs, and its standard error; per cent."""
    row = row_of(found, kind)
    return f"{row['gap']:+.2f} ± {row['error']:.2f}"


def odd(found: dict[str, Any], kind: str, word: str) -> dict[str, Any]:
    """Find the repetition of an arm that did not come out as `word`; ValueError unless it is one."""
    (one,) = (one for one in found["repetitions"] if one["kind"] == kind and one["word"] != word)
    return one


def said(found: dict[str, Any], kind: str) -> str:
    """Write "same 4 of 5, undecided 1 of 5"; "" for an arm without repetitions."""
    words = [one["word"] for one in found["repetitions"] if one["kind"] == kind]
    return ", ".join(f"{word} {words.count(word)} of {len(words)}" for word in WORDS if word in words)


def repeated_times(found: dict[str, Any], kind: str) -> int:
    return sum(one["kind"] == kind for one in found["repetitions"])


def repetitions_table(found: dict[str, Any]) -> str:
    rows = [
        [
            ARMS[one["kind"]],
            *(str(one[key] + 1) for key in ("call", "base")),
            *(str(one["runs"]), one["word"], interval(one["value"], one["low"], one["high"])),
        ]
        for one in found["repetitions"]
    ]
    return markdown_table(["arm", "of call", "BF16 of call", "runs", "verdict", "gap and interval"], rows)


def calls_table(found: dict[str, Any]) -> str:
    rows = []
    for number, parts in enumerate(found["calls"]):
        runs = [kind for at, kind, *_ in found["heldout"] if at == number]
        counts = ", ".join(f"{ARMS[kind]} {runs.count(kind)}" for kind in ARMS if kind in runs)
        commands = "; ".join(f"`{part['command']}`" for part in parts)
        rows.append([str(number + 1), str(parts[0]["started"])[:10], parts[0]["gpu"], counts, commands])
    return markdown_table(["call", "day", "GPU", "runs", "commands"], rows)
