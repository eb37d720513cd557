"""`lab compare`: plan, predict, train the arms of a preset one after another, then judge them from their folders.

The same command goes on with what was stopped. Under torchrun rank 0 plans, writes, prints and decides for all.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.prompt import Confirm

from labkit.comm.group import Group
from labkit.comm.ranks import is_first, run_ranks, under_torchrun
from labkit.compare import background, follow, own
from labkit.compare.budget import Budget
from labkit.compare.plan import Plan, check_part, fitting, make_plan, other_settings
from labkit.compare.preset import load_preset
from labkit.compare.session import Session
from labkit.compare.summary import announce, predicted
from labkit.compare.terminal import say
from labkit.errors import LabError
from labkit.model.shape_file import name_of


@dataclass(frozen=True)
class Request:
    """The options of `lab compare`. preset: a name or a TOML file; arms: names, None for the preset's choice; settings:
    KEY=VALUE; model: a file with another shape; part: "speed" or "safety" alone; price_per_hour: of the whole machine.
    """

    preset: str
    arms: Sequence[str] | None = None
    out: Path | None = None
    settings: Sequence[str] = ()
    model: Path | None = None
    part: str | None = None
    budget_minutes: float | None = None
    price_per_hour: float | None = None
    fresh: bool = False
    detach: bool = False
    stop: bool = False

    def words(self, out: Path) -> list[str]:
        """The command line of this comparison in `out`, without `lab`, and without `fresh`, `detach` and `stop`."""
        arms = None if self.arms is None else ",".join(self.arms)
        options: list[tuple[str, Any]] = [("--preset", self.preset), ("--arms", arms)]
        options += [("--set", setting) for setting in self.settings]
        options += [("--part", self.part), ("--budget-minutes", self.budget_minutes)]
        options += [("--price-per-hour", self.price_per_hour), ("--out", out)]
        return ["compare", *(str(word) for pair in options if pair[1] is not None for word in pair)]


def compare(request: Request, console: Console | None = None) -> int:
    """Run a comparison, or follow the one that runs in the folder, and print its verdict. LabError: it cannot run here.

    Returns the exit status, the same on every rank: 0 for pass, or if the arms or part named have their results; 3 if
    something was left for another call; else 1.
    """
    leader = is_first()
    console = (console or Console()) if leader else Console(quiet=True)
    named, settings = request.arms is not None, list(request.settings)
    if request.model:
        settings = [*own.settings(request.preset, request.model, settings), *settings]
    whole = load_preset(request.preset, settings)
    if not named and (other := fitting(whole, settings)) is not whole:
        why = f"the GPUs here have no FP8 products, which {whole.name} compares"
        say(console, f"{why}: this is {other.name}, {other.format} against {other.baseline_format}")
        whole = other
    wanted = list(whole.arms if request.arms is None else whole.only(request.arms).arms)
    parts = check_part(whole, request.part, wanted if named else ())
    model = f"-{name_of(request.model)}" if request.model else ""
    out = Path(request.out or Path("runs") / f"{whole.name}{model}")
    budget = Budget(request.budget_minutes, request.price_per_hour, out / background.STOP)
    if request.stop and (request.detach or request.fresh):
        raise LabError("--stop asks a running comparison to pause: it goes with no --detach and no --fresh")
    planned = partial(make_plan, whole, wanted, explicit=named, out=out, fresh=request.fresh, parts=parts)
    if under_torchrun():
        if request.detach or request.stop:
            raise LabError("--detach and --stop go without torchrun: `--set world_size=0` takes every GPU of a machine")
        # One rank decides what there is to do, or two could see the folder in two states.
        plan = run_ranks(_plan_on_rank_0, planned, out, timeout=None, device=whole.device)[0]
        if isinstance(plan, LabError):
            raise plan
    else:
        if request.stop:
            return follow.stop(out, console)
        if background.going(out):
            if request.fresh:
                raise LabError(f"a comparison is running in {out}: pause it with --stop before --fresh moves it aside")
            if different := other_settings(out, whole):
                where = f"with other settings ({different}) is running in {out}"
                raise LabError(f"a comparison {where}: wait for it, pause it with --stop, or choose another --out")
            return follow.follow(out, console)
        follow.report_death(out, console)
        if whole.device == "cuda":
            background.refuse_company(out)
        plan = planned()
    if leader and whole.device == "cuda" and plan.todo and budget.minutes is None:
        ask_without_budget(plan, console, budget)
    if request.detach:
        # Apart from the terminal, once the plan has shown that it can run.
        announce(plan, console, budget)
        process = background.detach(out, replace(request, settings=settings).words(out))
        log = out / background.LOG
        say(console, f"Detached, process {process.pid}: it goes on when this terminal closes. Log: {log}", fold=False)
        say(console, f"The same command shows it, so does `lab status {out}`; with --stop it pauses.", fold=False)
        return 0
    if leader:
        background.begin(out)
    return Session(plan, budget, console, leader).run(few=named or parts == ("speed",))


def ask_without_budget(plan: Plan, console: Console, budget: Budget) -> None:
    """Say what a call without a limit will take, and at a terminal ask. LabError if the answer is no."""
    # A rented GPU costs by the minute.
    trainings = f"{len(plan.sure())} trainings, predicted to take {predicted(plan, budget)}"
    say(console, f"No --budget-minutes: this starts {trainings}.", style="bold")
    if console.is_terminal and sys.stdin.isatty() and not Confirm.ask("Start them?", console=console, default=False):
        raise LabError("nothing was started: --budget-minutes sets a limit, and `lab follow` shows a run that goes on")


def _plan_on_rank_0(group: Group, planned: Callable[[], Plan], out: Path) -> Plan | LabError | None:
    if group.rank:
        return None
    try:
        if background.going(out):
            raise LabError(f"a comparison is running in {out} already: `lab status {out}` shows it")
        return planned()
    except LabError as error:
        return error
