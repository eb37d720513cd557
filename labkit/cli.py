"""The `lab` command. Each command imports what it needs when it runs, so that `lab --help` answers at once."""

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from labkit import __version__
from labkit.checks.commands import add_commands as add_check_commands
from labkit.errors import LabError, run_command
from labkit.train.checkpoint_cli import add_commands as add_checkpoint_commands

app = typer.Typer(
    name="lab",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Labs for distributed training: what this machine can run, and whether FP8 is worth it on it.",
)

# Options of more than one command.
Arms = Annotated[str | None, Option(help="Only these arms, by comma: bf16,fp8. Default: all of the preset.")]
SetKeys = Annotated[
    list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change a setting: train.steps=50. Repeatable.")
]
Minutes = Annotated[float | None, Option(help="Stop inside so many minutes; what is left goes on in the next call.")]
Price = Annotated[float | None, Option(help="What this machine costs an hour, to tell money beside minutes.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lab {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def doctor(
    matrix: Annotated[bool, Option("--matrix", help="Print which recipe goes with what, and on which GPUs.")] = False,
) -> None:
    """Show what this machine can run, and how to fix what it cannot."""
    if matrix:
        from labkit.precision.matrix import show

        show()
        return
    from labkit.doctor import findings

    checks = findings.run_doctor()
    findings.render(checks)
    raise typer.Exit(findings.exit_code(checks))


@app.command()
def compare(
    preset: Annotated[str, Option(help="What to compare: a preset's name (see --list) or a TOML file.")] = "cpu-tiny",
    arms: Arms = None,
    out: Annotated[Path | None, Option(help="The run's folder. Default: runs/PRESET.")] = None,
    set_: SetKeys = None,
    model: Annotated[Path | None, Option(help="A model of your own: its shape as TOML, or a config.json.")] = None,
    fresh: Annotated[bool, Option("--fresh", help="Start anew: a run already in the folder is moved aside.")] = False,
    part: Annotated[str | None, Option(help="Only this part of a preset that has both: speed or safety.")] = None,
    budget_minutes: Minutes = None,
    price_per_hour: Price = None,
    detach: Annotated[bool, Option("--detach", help="It goes on when this terminal's connection breaks.")] = False,
    stop: Annotated[bool, Option("--stop", help="Pause what runs in the folder; the same command goes on.")] = False,
    show_list: Annotated[bool, Option("--list", help="List the presets and their arms, then stop.")] = False,
) -> None:
    """Train the same model in several precisions, on the same data from the same weights, and give a verdict.

    Arms run one after another. Interrupted? The same command goes on with the arms it has. Is one running in the
    folder already? Then the same command shows it; Ctrl-C leaves it running.

    Exit status: 0 pass, or the budget ended in order (`lab status` tells what is left), 1 any other verdict, or an arm
    failed.
    """
    if show_list:
        from labkit.compare.preset import print_list

        print_list()
        return
    from labkit.compare.compare import Request
    from labkit.compare.compare import compare as run
    from labkit.compare.session import UNFINISHED

    names = arms.split(",") if arms else None
    request = Request(preset, names, out, set_ or [], model, part, budget_minutes, price_per_hour, fresh, detach, stop)
    status = run(request)
    raise typer.Exit(0 if status == UNFINISHED else status)  # a budget that ends in order is no failure


@app.command()
def status(run: Annotated[Path, Argument(help="A comparison's folder, for example runs/h100.")]) -> None:
    """Show where a comparison stands: at work, finished, paused, or died. Starts nothing.

    Exit status: 0 at work or finished, 3 the same command would go on with it, 1 it died or failed.
    """
    from rich.console import Console

    from labkit.compare.follow import overview

    raise typer.Exit(overview(run, Console()))


@app.command()
def follow(run: Annotated[Path, Argument(help="A comparison's folder, for example runs/h100.")]) -> None:
    """Follow a comparison that runs to its end, then show what came of it. Starts nothing; Ctrl-C leaves it running.

    Exit status: a detached comparison's own, any other's as `lab status`; 130 if you left.
    """
    from rich.console import Console

    from labkit.compare import background
    from labkit.compare import follow as outside

    console = Console()
    raise typer.Exit((outside.follow if background.going(run) else outside.overview)(run, console))


@app.command()
def watch(
    run: Annotated[Path, Argument(help="A training's or a comparison's folder, for example runs/demo.")],
    port: Annotated[int, Option(min=0, max=65535, help="Where the page is served; 0: any free port.")] = 5006,
    address: Annotated[str, Option(help="Whom the page is for: 127.0.0.1, this machine; 0.0.0.0, all.")] = "127.0.0.1",
    browser: Annotated[bool, Option("--browser/--no-browser", help="Open it in the browser.")] = True,
    mine: Annotated[bool, Option("--mine", help="Your own alarms too: 16.8's and C.4's.")] = False,
) -> None:
    """Show a training's health in the browser, live: curves, scales, events, and alarms with their reasons.

    Reads the folder alone: it may start late, end (Ctrl-C) and start again, also on another machine that sees it.
    """
    from labkit.watch.serve import serve

    serve(run, port, address, browser, typer.echo, mine)


@app.command()
def export(
    run: Annotated[Path, Argument(help="A training's folder, for example runs/demo/arms/fp8.")],
    to: Annotated[str, Option("--to", help="tensorboard or wandb (Weights & Biases, offline).")],
    out: Annotated[Path | None, Option(help="Where to. Default: RUN/tensorboard or RUN/wandb.")] = None,
) -> None:
    """Write a run's record for TensorBoard, or as an offline run of Weights & Biases."""
    from labkit.watch.export import export as write

    typer.echo(write(run, to, out))


@app.command()
def report(
    run: Annotated[Path, Argument(help="A run's folder, for example runs/demo.")],
    table: Annotated[bool, Option("--table", help="Print a comparison's table as Markdown instead.")] = False,
) -> None:
    """Draw a run's report again from its record, also of a run that was killed."""
    if table:
        from labkit.compare.summary import markdown

        typer.echo(markdown(run))
        return
    from labkit.compare.report import report as draw

    typer.echo(draw(run))


@app.command()
def results(
    folder: Annotated[Path | None, Argument(help="The course's root, one page, or with --pack a run's folder.")] = None,
    pack: Annotated[bool, Option("--pack", help="Make one compressed file of each finished run there.")] = False,
    check: Annotated[bool, Option("--check", help="Write nothing; status 1 if a page is out of date.")] = False,
    redraw: Annotated[bool, Option("--redraw", help="Draw every picture anew, also where it says the same.")] = False,
) -> None:
    """Write README.md and the pages in docs/ and results/ from their templates and the records."""
    from labkit.compare.pages import command

    raise typer.Exit(command(folder, pack, check, redraw))


@app.command()
def scaling(
    preset: Annotated[str, Option(help="Whose speed part: a preset's name or a TOML file.")] = "h100",
    gpus: Annotated[str, Option(help="How many GPUs, by comma.")] = "1,2,4,8",
    arms: Arms = None,
    out: Annotated[Path | None, Option(help="The runs' folder. Default: runs/PRESET-scaling.")] = None,
    set_: SetKeys = None,
    budget_minutes: Minutes = None,
    price_per_hour: Price = None,
    each: Annotated[bool, Option("--each", help="Also time every GPU alone: is it the messages, or one GPU?")] = False,
    table: Annotated[bool, Option("--table", help="Only print the table of finished runs, as Markdown.")] = False,
) -> None:
    """Weak scaling: time each arm on 1, 2, 4, 8 GPUs with the same work for each GPU, and tell what is lost.

    Exit status: 0 all is timed, 3 the budget left something for another call, 1 an arm failed.
    """
    from labkit.compare import scaling as weak
    from labkit.compare.compare import Request

    if table:
        typer.echo(weak.markdown(out or Path("runs") / f"{Path(preset).stem}-scaling"))
        return
    names = arms.split(",") if arms else None
    request = Request(preset, names, out, set_ or [], None, None, budget_minutes, price_per_hour)
    raise typer.Exit(weak.scaling(request, gpus, each=each))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Time all-reduce on this machine: the library's beside yours. `lab bench --help` tells its options."""
    # By name and not by import: labkit stands on no week.
    week = "week13_allreduce"
    if "" not in sys.path:
        sys.path.insert(0, "")  # the week's folder stands in the course's root, where commands are typed
    try:
        run = importlib.import_module(f"{week}.bench").main
    except ModuleNotFoundError as error:
        if error.name not in (week, f"{week}.bench"):
            raise
        raise LabError(f"there is no {week}/ here: run this from the course's root folder") from None
    raise typer.Exit(run(context.args))


@app.command()
def bundle(
    run: Annotated[Path | None, Argument(help="A run's folder, for example runs/h100.")] = None,
    out: Annotated[Path | None, Option(help="The archive. Default: RUN.tar.gz beside the folder.")] = None,
    check: Annotated[Path | None, Option(metavar="FILE", help="Verify an archive: every file, none altered.")] = None,
    into: Annotated[Path | None, Option("--to", metavar="FOLDER", help="With --check: unpack it there.")] = None,
    as_is: Annotated[bool, Option("--as-is", help="Pack a run that goes on, was killed, or lacks files.")] = False,
) -> None:
    """Pack a run into one small archive to carry home, and verify it at the other end."""
    from labkit.compare.bundle import command

    raise typer.Exit(command(run, out, check, into, as_is))


# BEGIN WITH week15
@app.command()
def plan(
    model: Annotated[str, Option(help="tiny, 124m, 1b, 7b, 8b, 13b, 70b, 405b, 8x7b, NAME.toml, config.json.")] = "8b",
    seq: Annotated[int | None, Option(help="Tokens a sequence. Default: the model's.")] = None,
    gpus: Annotated[int, Option(help="How many.")] = 64,
    gpu: Annotated[str, Option(help="h100, b200, ...; a file of --calibrate; any other by --peak to --hbm.")] = "h100",
    per_node: Annotated[int | None, Option(help="GPUs linked by NVLink. Default: 8, or the file's.")] = None,
    nvlink: Annotated[float | None, Option(help="GB/s a GPU, one direction. Default: the GPU's.")] = None,
    ib: Annotated[float | None, Option(help="GB/s of network a GPU, one way. Default: 50, or the file's.")] = None,
    batch_tokens: Annotated[str, Option(help="Tokens a step: 4M, 512K.")] = "4M",
    precision: Annotated[str | None, Option(help="bf16, fp8, mxfp8 or nvfp4. Default: the first two.")] = None,
    goal: Annotated[str, Option(help="time, cost (also on fewer GPUs), or memory (at most 25 % slower).")] = "time",
    measured: Annotated[float | None, Option(min=1e-6, help="Seconds of a step, as measured: all are scaled.")] = None,
    of: Annotated[str | None, Option(metavar="PLAN", help="The plan --measured: dp4.tp2. Default: the best.")] = None,
    peak: Annotated[float | None, Option(help="Dense BF16 TFLOP/s.")] = None,
    fp8_peak: Annotated[float | None, Option(help="Dense FP8 TFLOP/s; 0 without FP8.")] = None,
    fp4_peak: Annotated[float | None, Option(help="Dense FP4 TFLOP/s, of a GPU with MXFP8 and NVFP4.")] = None,
    memory: Annotated[float | None, Option(help="GB of a GPU.")] = None,
    hbm: Annotated[float | None, Option(help="GB/s of its memory.")] = None,
    explain: Annotated[tuple[str, str] | None, Option(metavar="A B", help="Compare two: 1 2, tp8.pp2 dp16.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the answer as JSON.")] = False,
    figure: Annotated[Path | None, Option(help="Draw the best plans' steps: NAME.png.")] = None,
    write: Annotated[Path | None, Option(help="Write the best plan as a TOML file's \\[parallel] table.")] = None,
    calibrate: Annotated[bool, Option("--calibrate", help="Only measure this machine, for --gpu FILE.")] = False,
    out: Annotated[Path | None, Option(help="With --calibrate: the file. Default: runs/machine.toml.")] = None,
    device: Annotated[str | None, Option(help="With --calibrate: cuda or cpu. Default: the GPU if any.")] = None,
) -> None:
    """Which degrees of parallelism for this model on these GPUs, how fast, and why not the neighbours."""
    given = locals()
    if calibrate:
        from labkit.plan.calibrate import calibrate as measure

        raise typer.Exit(measure(out, device))
    if out is not None or device is not None:
        raise LabError("--out and --device belong to --calibrate")
    if of is not None and measured is None:
        raise LabError("--of belongs to --measured")
    from labkit.plan.planner import plan as run
    from labkit.plan.request import Request

    raise typer.Exit(run(Request(**{name: value for name, value in given.items() if name in Request.__match_args__})))


# END WITH week15


@app.command()
def crossover(
    m: Annotated[str | None, Option("--m", help="Tokens, by comma: 1K,4K,16K.")] = None,
    k: Annotated[str | None, Option("--k", help="Inputs, by comma.")] = None,
    n: Annotated[str | None, Option("--n", help="Outputs, by comma.")] = None,
    arms: Annotated[str | None, Option(help="Only these, by comma: te-current,torchao-tensorwise.")] = None,
    device: Annotated[str | None, Option(help="cuda or cpu. Default: the GPU if there is one.")] = None,
    out: Annotated[Path | None, Option(help="The map's folder. Default: runs/crossover.")] = None,
    seconds: Annotated[float, Option(help="Stop after about so many; the same command goes on.")] = 300.0,
    budget: Annotated[float, Option(help="Seconds of timing for each cell.")] = 0.1,
    no_compile: Annotated[bool, Option("--no-compile", help="Leave torchao's linears eager.")] = False,
) -> None:
    """Map FP8's speed-up over the shapes of a linear: where it pays, where it does not, and why."""
    from labkit.crossover.crossover import Request
    from labkit.crossover.crossover import crossover as run

    how: dict[str, Any] = dict(seconds=seconds, budget=budget, compiled=not no_compile)
    raise typer.Exit(run(Request(m, k, n, arms, device, out or Request.out, **how)))


add_check_commands(app)
add_checkpoint_commands(app)


def main(argv: list[str] | None = None) -> None:
    """Entry point of `lab` and `python -m labkit`. Errors that a user can fix are one sentence on stderr and status 2."""
    run_command("lab", lambda: app(argv))
