"""What `lab plan` does: read the request, search, print, write."""

import json
from typing import cast

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from labkit.errors import LabError
from labkit.model.shape_file import is_file
from labkit.plan import explain
from labkit.plan.cases import FORMATS, FULL
from labkit.plan.constants import accuracy, share_of_stack
from labkit.plan.footprint import FITS, GIB, MAY
from labkit.plan.model import find_model
from labkit.plan.request import LARGEST, G, Request, choose_precisions, count_sequences, find_cluster
from labkit.plan.search import Found, Goal, ranked, search, ties
from labkit.record.files import explained

SHOWN = 10
KINDS = ("weights", "grads", "optim", "gathered", "activ", "logits")  # as Memory has them
LEFT = ("", "loses most to", "% of step", "GiB")  # heads of columns that are no numbers, or number the plans
HEADS = list(dict.fromkeys(part.head for part in explain.PARTS.values()))


def plan(request: Request, console: Console | None = None) -> int:
    """Print the best plans, and return 0. LabError with one sentence where nothing can be answered."""
    console = console or Console()
    model, cluster = find_model(request.model, request.seq), find_cluster(request)
    gbs = count_sequences(request.batch_tokens, model)
    precisions = choose_precisions(request, model, cluster.chip)
    if request.goal not in ("time", "cost", "memory"):
        raise LabError(f"--goal is time, cost or memory, not '{request.goal}'")
    goal = cast(Goal, request.goal)
    found = search(model, cluster, gbs, precisions)
    factor, notes = scale(found, request)
    found = found.times(factor)
    if goal == "cost":
        found = find_cheapest(found, gbs, precisions, factor)
    order = ranked(found, goal)
    if not order:
        raise LabError(explain_no_fit(found, gbs, precisions))
    rows = order[:SHOWN]
    if request.write:
        with explained(request.write):
            request.write.write_text(write_table(found, rows[0]), encoding="utf-8")
    if request.figure:
        from labkit.plan.anatomy import draw_anatomy

        draw_anatomy(found, rows, request.figure)
    if request.as_json:
        answer = {"gpu": request.gpu, "goal": goal, **explain.as_json(found, rows)}
        print(json.dumps(answer, indent=1))
    elif request.explain:
        a, b = (explain.choose(found, text, order) for text in request.explain)
        show_two(found, a, b, console)
    else:
        show(found, request, order, console, notes)
    return 0


def scale(found: Found, request: Request) -> tuple[float, list[str]]:
    """Return the factor for all steps that one measured step gives, and the sentence that says so."""
    if request.measured is None:
        return 1.0, []
    row = explain.choose(found, request.of or "1", ranked(found, "time"))
    seconds = float(found.seconds[row])
    interval = accuracy()["interval"]
    factor = float(np.exp(share_of_stack(float(np.log(request.measured / seconds)), interval)))
    return factor, [
        f"{explain.name(found.plan(row))} took {request.measured:.4g} s and was predicted to take {seconds:.4g} s: all "
        f"steps are scaled by {factor:.3f}. Of a difference within {100 * interval:.0f} % little is taken over, since "
        "a single run is off by as much; of a larger one nearly all."
    ]


def find_cheapest(found: Found, gbs: int, precisions: tuple[str, ...], factor: float = 1.0) -> Found:
    """Search on the number of GPUs, this one or half, a quarter ... of it, on which a token costs least."""
    best, cost = found, np.inf
    cluster = found.cluster
    while True:
        if rows := ranked(found, "time"):
            here = float(found.seconds[rows[0]]) * found.cluster.gpus
            # Fewer GPUs must be cheaper by more than the model's error, or they only take longer.
            if here < cost * np.exp(-accuracy()["tie"]) or cost == np.inf:
                best, cost = found, here
        if cluster.gpus % 2 or cluster.gpus == 1:
            return best
        gpus = cluster.gpus // 2
        cluster = cluster._replace(gpus=gpus, per_node=min(cluster.per_node, gpus))
        try:
            found = search(found.model, cluster, gbs, precisions).times(factor)
        except LabError:
            return best


def explain_no_fit(found: Found, gbs: int, precisions: tuple[str, ...]) -> str:
    """Say what is missing, and the smallest change that fits: more GPUs, or shorter sequences."""
    row = int(np.argmin(found.room.least))
    need, have = float(found.room.least[row]) / GIB, float(found.cases.memory[row]) / GIB
    leanest = (
        f"nothing fits: the leanest plan, {explain.name(found.plan(row))}, with sequences of {found.model.seq} tokens needs {need:.0f} GiB a GPU where "
        f"{have:.0f} are, {need - have:.0f} too many"
    )
    cluster = found.cluster
    while cluster.gpus * 2 <= LARGEST:
        cluster = cluster._replace(gpus=cluster.gpus * 2)
        try:
            more = search(found.model, cluster, max(gbs, cluster.gpus), precisions)
        except LabError:
            continue
        if more.fits.any():
            return f"{leanest}; it fits on {cluster.gpus} GPUs ({explain.name(more.plan(ranked(more, 'time')[0]))})"
    return f"{leanest}; no number of such GPUs up to {LARGEST} helps: take GPUs with more memory, or shorter sequences"


def show(found: Found, request: Request, order: list[int], console: Console, notes: list[str]) -> None:
    """Print three tables (plans and speed, where the step goes, memory), then sentences. Each fits into 80 columns."""
    c, chip, best, rows = found.cluster, found.cluster.chip, order[0], order[:SHOWN]
    tied, mfu, speed = ties(found, rows), found.mfu(), found.tokens_s_gpu()
    millions = found.model.parameters / 1e6
    size = f"{millions / 1e3:.3g} B" if millions >= 1e3 else f"{millions:.3g} M"

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)

    say(
        f"{size} parameters, {int(found.cases.gbs[best])} sequences of {found.model.seq} tokens a step, on "
        f"{c.gpus} {chip.name or request.gpu} ({c.per_node} a node, {c.intra / G:g} and {c.inter / G:g} GB/s a GPU, "
        f"{chip.memory_gb:g} GB). {len(found.seconds):,} plans, {int((found.fit == FITS).sum()):,} fit, "
        f"{int((found.fit == MAY).sum()):,} may."
    )
    if request.seq is None and is_file(request.model):
        say(f"The sequences are as long as the file allows, {found.model.seq} tokens: --seq takes another length.")
    degrees = ("dp", "tp", "pp", "vp", "cp", "ep", "zero", "mbs")
    first = _table(("", *degrees, "again", "prec", "step s", "tok/s/GPU", "MFU %"))
    second = _table(("% of step", *HEADS))
    third = _table(("GiB", "least", "most", *KINDS, "loses most to"))
    for rank, (row, tie) in enumerate(zip(rows, tied), 1):
        p, of, seconds = found.plan(row), explain.parts(found.step, row), float(found.seconds[row])
        first.add_row(
            f"{rank}{'=' if tie else ' '}{'?' if found.fit[row] == MAY else ' '}",
            *[str(p[key]) for key in degrees],
            "all" if p["recompute"] == FULL else "-",
            FORMATS[p["format"]],
            f"{seconds:.4g}",
            f"{speed[row]:,.0f}",
            f"{100 * mfu[row]:.1f}",
        )
        shares = dict.fromkeys(HEADS, 0.0)
        for key, part in explain.PARTS.items():
            shares[part.head] += 100 * of[key] / seconds
        second.add_row(str(rank), *map(_number, shares.values()))
        gib = [float(column[row]) / GIB for column in (found.room.least, found.room.most, *found.memory)]
        third.add_row(str(rank), *[_number(one) for one in gib], explain.binding(found, row)[0])
    for table in (first, second, third):
        console.print(table)
    error, sigma = accuracy(), accuracy()["interval"]
    low, high = (float(found.seconds[best]) * np.exp(sign * sigma) for sign in (-1, 1))
    say(
        f"Steps are predicted: the best one lies between {low:.3g} and {high:.3g} s in four of five software stacks "
        f"that the model had not seen (mean error {100 * error['stack_out_mean']:.0f} %)."
    )
    say("MFU: of the BF16 peak, in every format; full attention, nothing that is computed again.")
    if sum(tied) > 1:
        say(f"=: a tie with the best, within {100 * error['tie']:.0f} %, by which plans of one sweep were misjudged.")
    if found.fit[rows].min() == MAY:
        say("?: it may fit, by what the software keeps.")
    if found.model.experts:
        say("Mixtures of experts: no run was fitted; an expert computes 1.25 times its mean tokens.")
    for sentence in (*notes, *explain.doubt(found, order), explain.next_constraint(found, best)):
        say(sentence)
    say(f"\nWhy {explain.name(found.plan(best))}, and not")
    for sentence in explain.neighbours(found, best):
        say(f"  {sentence}")


def show_two(found: Found, a: int, b: int, console: Console) -> None:
    for letter, row in (("A", a), ("B", b)):
        console.print(f"{letter}: {explain.name(found.plan(row))}", highlight=False, soft_wrap=True)
    table = _table(("", "A", "B", "difference"))
    for what, one, other in explain.compare_lines(found, a, b):
        table.add_row(what, f"{one:.4g}", f"{other:.4g}", f"{other - one:+.3g}")
    console.print(table)
    for row in (a, b):
        if not found.fits[row]:
            console.print(f"{explain.name(found.plan(row))} does not fit.", highlight=False)
    if ties(found, [a, b]) == [True, True]:
        console.print("They are a tie: the model cannot tell them apart.", highlight=False)


def write_table(found: Found, row: int) -> str:
    """Return the [parallel] table of a training's TOML file."""
    p = found.plan(row)
    lines = [f"{key} = {p[key]}" for key in ("dp", "tp", "pp", "vp", "cp", "ep", "zero")]
    lines += [f"micro_batch = {p['mbs']}", f"recompute = {str(p['recompute'] == FULL).lower()}"]
    return "\n".join(["[parallel]", *lines, f'precision = "{FORMATS[p["format"]]}"']) + "\n"


def _number(value: float) -> str:
    return f"{value:.1f}" if value >= 0.05 else "-"


def _table(heads: tuple[str, ...]) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        table.add_column(head, justify="left" if head in LEFT else "right", no_wrap=True)
    return table
