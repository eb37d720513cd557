"""The `lab` command. Each command imports what it needs when it runs, so that `lab --help` answers at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from labkit import __version__
from labkit.checks.commands import add_commands as add_check_commands
from labkit.errors import LabError
from labkit.train.commands import add_commands as add_checkpoint_commands

app = typer.Typer(
    name="lab",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Labs for distributed training: what this machine can run, and whether FP8 is worth it on it.",
)

# Tools that live in a week's folder, by name and not by import: labkit stands on no week.
BENCH = "week13_allreduce.bench:main"
INTERRUPTED = 130  # the shell's convention for a command ended by Ctrl-C (128 + SIGINT)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lab {__version__}")
        raise typer.Exit


def _by_comma(names: str | None) -> list[str] | None:
    return names.split(",") if names else None


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix",
            help="Print instead which recipe goes with what: FSDP2, compile, checkpointing, each generation of GPUs.",
        ),
    ] = False,
) -> None:
    """Tell what this machine can run, and how to mend what it cannot."""
    if matrix:
        from labkit.doctor.matrix import show

        show(as_json)
        return
    from labkit.doctor import findings

    checks = findings.run_doctor()
    if as_json:
        typer.echo(findings.to_json(checks))
    else:
        findings.render(checks)
    raise typer.Exit(findings.exit_code(checks))


@app.command()
def compare(
    preset: Annotated[
        str, typer.Option(help="What to compare: a preset's name (see --list) or a TOML file.")
    ] = "cpu-tiny",
    arms: Annotated[
        str | None, typer.Option(help="Only these arms, by comma: bf16,fp8. Default: all of the preset.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder. Default: runs/PRESET.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change one setting of the preset, for example --set train.steps=50. Repeatable.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start anew: a run already in the folder is moved aside.")
    ] = False,
    part: Annotated[str | None, typer.Option(help="Only this part of a preset that has both: speed or safety.")] = None,
    budget_minutes: Annotated[
        float | None,
        typer.Option(help="Stop inside so many minutes; what is left goes on in the next call (exit status 3)."),
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(help="What this machine costs an hour, to tell money beside minutes.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start it apart from this terminal: it goes on when the connection breaks.")
    ] = False,
    stop: Annotated[
        bool,
        typer.Option(
            "--stop", help="Ask the comparison that runs in the folder to pause; the same command goes on later."
        ),
    ] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the presets and their arms, then stop.")] = False,
) -> None:
    """Train the same model in several precisions, on the same data from the same weights, and give a verdict.

    Arms run one after another. Interrupted? The same command goes on with the arms it has. Is one running in the
    folder already? Then the same command shows it; Ctrl-C leaves it running.
    """
    if show_list:
        from labkit.compare.preset import print_list

        print_list()
        return
    from labkit.compare.compare import compare as run

    raise typer.Exit(
        run(
            preset,
            arms=_by_comma(arms),
            out=out,
            settings=set_ or [],
            fresh=fresh,
            part=part,
            budget_minutes=budget_minutes,
            price_per_hour=price_per_hour,
            detach=detach,
            stop=stop,
        )
    )


@app.command()
def status(run: Annotated[Path, typer.Argument(help="A comparison's folder, for example runs/h100.")]) -> None:
    """Show where a comparison stands: at work, finished, paused, or died. Starts nothing.

    Exit status: 0 at work or finished, 3 the same command would go on with it, 1 it died or failed.
    """
    from rich.console import Console

    from labkit.compare.watch import overview

    raise typer.Exit(overview(run, Console()))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run's folder, for example runs/demo.")],
    table: Annotated[bool, typer.Option("--table", help="Print a comparison's table as Markdown instead.")] = False,
) -> None:
    """Draw a run's report again from its record, also of a run that was killed."""
    if table:
        from labkit.compare.summary import markdown

        typer.echo(markdown(run))
        return
    from labkit.compare.report import report as draw

    typer.echo(draw(run))


@app.command()
def scaling(
    preset: Annotated[str, typer.Option(help="Whose speed part: a preset's name or a TOML file.")] = "h100",
    gpus: Annotated[str, typer.Option(help="How many GPUs, by comma.")] = "1,2,4,8",
    arms: Annotated[str | None, typer.Option(help="Only these arms, by comma: bf16,te-delayed.")] = None,
    out: Annotated[Path | None, typer.Option(help="The runs' folder. Default: runs/PRESET-scaling.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one setting of the preset. Repeatable."),
    ] = None,
    budget_minutes: Annotated[float | None, typer.Option(help="Stop inside so many minutes (status 3).")] = None,
    price_per_hour: Annotated[float | None, typer.Option(help="What this machine costs an hour.")] = None,
    each: Annotated[
        bool,
        typer.Option("--each", help="Also time every GPU alone, all at once: is it the messages, or one slow GPU?"),
    ] = False,
    table: Annotated[bool, typer.Option("--table", help="Only print the table of finished runs, as Markdown.")] = False,
) -> None:
    """Weak scaling: time each arm on 1, 2, 4, 8 GPUs with the same work for each GPU, and tell what is lost."""
    from labkit.compare import scaling as weak

    if table:
        typer.echo(weak.markdown(out or Path("runs") / f"{Path(preset).stem}-scaling"))
        return
    raise typer.Exit(
        weak.scaling(
            preset,
            gpus,
            arms=_by_comma(arms),
            out=out,
            settings=set_ or [],
            budget_minutes=budget_minutes,
            price_per_hour=price_per_hour,
            each=each,
        )
    )


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def bench(context: typer.Context) -> None:
    """Time all-reduce on this machine: the library's beside yours. `lab bench --help` tells its options."""
    raise typer.Exit(_named(BENCH)(context.args))


@app.command()
def bundle(
    run: Annotated[Path | None, typer.Argument(help="A run's folder, for example runs/h100.")] = None,
    out: Annotated[Path | None, typer.Option(help="The archive. Default: RUN.tar.gz beside the folder.")] = None,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="FILE", help="Verify an archive instead: every file there, none altered."),
    ] = None,
    into: Annotated[
        Path | None, typer.Option("--to", metavar="FOLDER", help="With --check: unpack it there after verifying.")
    ] = None,
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Pack a run that goes on, was killed, or lacks files.")
    ] = False,
) -> None:
    """Pack a run into one small archive to carry home, and verify it at the other end."""
    from labkit.compare.bundle import command

    raise typer.Exit(command(run, out, check, into, as_is))


@app.command()
def crossover(
    m: Annotated[str | None, typer.Option("--m", help="Tokens, by comma: 1K,4K,16K.")] = None,
    k: Annotated[str | None, typer.Option("--k", help="Inputs, by comma.")] = None,
    n: Annotated[str | None, typer.Option("--n", help="Outputs, by comma.")] = None,
    arms: Annotated[str | None, typer.Option(help="Only these, by comma: te-current,torchao-tensorwise.")] = None,
    device: Annotated[str | None, typer.Option(help="cuda or cpu. Default: the GPU if there is one.")] = None,
    out: Annotated[Path | None, typer.Option(help="The map's folder. Default: runs/crossover.")] = None,
    seconds: Annotated[float, typer.Option(help="Stop after about so many; the same command goes on.")] = 300.0,
    budget: Annotated[float, typer.Option(help="Seconds of timing for each cell.")] = 0.1,
    no_compile: Annotated[bool, typer.Option("--no-compile", help="Leave torchao's linears eager.")] = False,
) -> None:
    """Map FP8's speed-up over the shapes of a linear: where it pays, where it does not, and why."""
    from labkit.crossover.command import crossover as run

    raise typer.Exit(
        run(m, k, n, arms=arms, device=device, out=out, seconds=seconds, budget=budget, compiled=not no_compile)
    )


def _named(path: str):
    """The function that "module:function" names; LabError if the folder it lives in is not here."""
    import importlib

    module, _, function = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the week's folder stands in the course's root, where commands are typed
    try:
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name not in (module, module.split(".")[0]):
            raise
        raise LabError(f"there is no {module.split('.')[0]}/ here: run this from the course's root folder") from None


add_check_commands(app)
add_checkpoint_commands(app)


def main(argv: list[str] | None = None) -> None:
    """Entry point of `lab` and `python -m labkit`. Errors a user can mend are one sentence on stderr and status 2."""
    try:
        app(argv)
    except LabError as error:
        sys.stdout.flush()
        print(f"lab: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        # Ctrl-C in a command: typer makes a status of it, and says nothing. (A command that has told of it ends with a
        # status of its own making.)
        interrupted = isinstance(end, KeyboardInterrupt) or isinstance(_cause(end), KeyboardInterrupt)
        if not interrupted:
            raise
        print("lab: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _cause(end: BaseException) -> BaseException | None:
    return getattr(end.__context__, "__cause__", None)


if __name__ == "__main__":
    main()
