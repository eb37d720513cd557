"""`lab checkpoint`: what a checkpoint is, and one with FP8 parameters from one without."""

from pathlib import Path
from typing import Annotated

import typer

checkpoint = typer.Typer(no_args_is_help=True, help="Look into a run's checkpoints, and convert them.")


def add_commands(app: typer.Typer) -> None:
    """Register the commands with the `lab` application."""
    app.add_typer(checkpoint, name="checkpoint")


@checkpoint.command()
def show(
    path: Annotated[Path, typer.Argument(help="A run's folder (its newest checkpoint), or a checkpoint's.")],
) -> None:
    """Tell what a checkpoint holds: step, size, and its precision flags. Verifies every file first."""
    from labkit.precision.flags import in_words, title
    from labkit.train.reformat import find_checkpoint, read_whole

    folder = find_checkpoint(path)
    body = read_whole(folder)
    size = sum(entry["bytes"] for entry in body["files"].values())
    ranks = "1 rank" if body["world_size"] == 1 else f"{body['world_size']} ranks"
    typer.echo(f"{folder}: whole, step {body['step']}, saved on {ranks} by torch {body['torch']}, {size / 1e6:,.1f} MB")
    if "converted" in body:
        typer.echo(f"converted to {body['converted']['to']} parameters from {body['converted']['from']}")
    if not (flags := body.get("precision")):
        typer.echo("no precision flags: older than they are, or trained without a precision backend")
        return
    typer.echo(f"precision: {title(flags)}, in the {flags['phase']} phase; {len(flags['linears'])} linears")
    if flags["scaling"]:
        block = f" of {flags['block']}" if flags["block"] else ""
        typer.echo(
            f"formats: {flags['forward']} forward, {flags['backward']} backward; scaling: {flags['scaling']}{block}, "
            f"power-of-two scales: {in_words(flags['power_of_two'])}, amax epsilon {in_words(flags['amax_epsilon'])}"
        )
    held = "FP8, with FP32 master weights in the optimizer" if flags["fp8_parameters"] else "in high precision"
    typer.echo(f"parameters: {held}")


@checkpoint.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="A run's folder, or one of its checkpoints.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The folder of the new run.")],
    to: Annotated[str, typer.Option("--to", help="What the parameters shall be: bf16 or fp8.")],
    masters: Annotated[bool, typer.Option("--masters", help="To bf16: take the optimizer's FP32 weights.")] = False,
) -> None:
    """Write a checkpoint with FP8 parameters as one without, or the other way round, for a new run to go on from."""
    from labkit.train.reformat import reformat

    typer.echo(reformat(source, target, to, masters=masters))
