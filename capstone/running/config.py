"""What a run of the capstone is: a training's configuration (labkit.train.config) with five things more.

    parts = "mine"                 # your modules; or "torch": FSDP2, DTensor and labkit's precision backends
    mixed_precision = "fp8"        # or "bf16", "fp32": one line
    rest = "bf16"                  # what "mine" computes in beside FP8 products; "fp32" on a CPU without BF16 units
    products = "emulated"          # of "fp8": 16.5's, or "tensor-cores": 16.10's, on a GPU that has them; slow on a CPU
    hang_after = 300               # seconds in one call, after which the watchdog of "mine" ends the run; 0: never
    [parallel]                     # as `lab plan --write` has it
    dp = 2                         # 0: the ranks that the others leave
    tp = 2
    pp = 1

`read` gives the configuration; `degrees` fits it to the ranks that are there, and refuses what does not go in one
sentence, before anything is built: by labkit's matrix (`lab doctor --matrix`) and by what is said here.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from capstone.given.parts import TENSOR_CORES, unfinished
from capstone.given.setup import Setup
from labkit.errors import LabError
from labkit.parallel import tensor
from labkit.precision.matrix import NO, cell
from labkit.precision.recipes import find_recipe
from labkit.strict import Config, Count, CountOrOff, load_toml, strict_validate
from labkit.train.config import MIXED, TrainConfig


class ParallelConfig(Config):
    """The table [parallel]. zero: 0 chooses 3, and 1 with a pipeline. micro_batch: sequences; 0: by `accumulation`."""

    dp: CountOrOff = 0
    tp: Count = 1
    pp: Count = 1
    vp: Count = 1
    cp: Count = 1
    ep: Count = 1
    zero: CountOrOff = 0
    micro_batch: CountOrOff = 0
    recompute: bool = False


class CapstoneConfig(TrainConfig):
    """One run; see above."""

    parts: Literal["mine", "torch"] = "mine"
    rest: Literal["fp32", "bf16"] = "bf16"
    products: Literal["emulated", "tensor-cores"] = "emulated"
    hang_after: Annotated[float, Field(ge=0)] = 300.0  # seconds in one call, of "mine"; 0: no limit
    parallel: ParallelConfig = ParallelConfig()


def read(path: str | Path) -> CapstoneConfig:
    """The configuration in a TOML file. `precision` in [parallel], as `lab plan` writes it, is `mixed_precision`.
    LabError names the file and the mistake."""
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return load_toml(path, CapstoneConfig)  # it has the words for these
    table = values.get("parallel")
    if isinstance(table, dict) and "precision" in table:
        planned = table.pop("precision")
        if values.setdefault("mixed_precision", planned) != planned:
            raise LabError(
                f"{path}: mixed_precision is {values['mixed_precision']!r} and [parallel] precision {planned!r}: "
                "leave one of the two out"
            )
    return strict_validate(CapstoneConfig, values, str(path))


def degrees(config: CapstoneConfig, ranks: int) -> CapstoneConfig:
    """The configuration with its degrees as they are on so many ranks: dp, zero and accumulation filled in.
    LabError in one sentence for what does not go."""
    p = config.parallel
    for name, why in (
        ("vp", "stages are not interleaved here"),
        ("cp", "nothing here cuts a sequence over ranks"),
        ("ep", "experts are not spread over ranks here"),
    ):
        if getattr(p, name) > 1:
            raise LabError(f"{name} = {getattr(p, name)}: {why}: leave it at 1")
    dp = p.dp or max(1, ranks // (p.tp * p.pp))
    if dp * p.tp * p.pp != ranks:
        raise LabError(
            f"dp {dp} x tp {p.tp} x pp {p.pp} is a mesh of {dp * p.tp * p.pp} ranks, and {ranks} are here: choose "
            f"degrees whose product is {ranks}"
        )
    row, torch = recipe(config), config.parts == "torch"
    # Your own linears agree on their amaxes (C.1), so TP and PP are open to them; the table speaks of the others.
    for column, used in (("FSDP2", dp > 1), ("TP", torch and p.tp > 1), ("PP", torch and p.pp > 1)):
        found = cell(row, column)
        if used and found.state == NO:
            raise LabError(f"{row.removesuffix(' *')} and {column} do not go together: {found.why}")
    if torch and p.pp > 1:
        raise LabError('parts = "torch" has no pipeline here: set pp = 1, or parts = "mine"')
    each = p.micro_batch * dp
    if each and config.batch_size % each:
        raise LabError(
            f"batch_size = {config.batch_size} is not a multiple of dp x micro_batch = {each}: change one of them"
        )
    again: Any = {"activation_checkpointing": "block"} if p.recompute else {}
    accumulation = config.batch_size // each if each else config.accumulation
    if config.batch_size % (dp * accumulation):
        raise LabError(
            f"batch_size = {config.batch_size} cannot be cut into {accumulation} micro-batches on each of {dp} "
            "data-parallel ranks: make it a multiple of their product"
        )
    zero = p.zero or (1 if p.pp > 1 else 3)
    parallel = p.replace(dp=dp, zero={2: 1}.get(zero, zero))
    if not torch and (p.recompute or config.activation_checkpointing != "none" or config.compile):
        raise LabError('parts = "mine" neither compiles nor computes blocks again: take those settings out')
    if config.products == "tensor-cores":
        refuse_tensor_cores(config)
    filled = config.replace(parallel=parallel, accumulation=accumulation, **again)
    if torch:
        tensor.check(filled.resolved_model, p.tp)
    else:
        setup_of(filled).refuse(ranks)
    return filled


def refuse_tensor_cores(config: CapstoneConfig) -> None:
    """LabError, in one sentence, where products = "tensor-cores" does not go."""
    if config.parts == "torch" or precision_of(config) != "fp8":
        raise LabError('products = "tensor-cores" is for parts = "mine" with mixed_precision = "fp8": leave it out')
    if config.parallel.tp > 1:
        raise LabError(
            'products = "tensor-cores" and tp > 1 do not go together: 16.10 finds its scales on one rank alone'
        )
    if task := unfinished(TENSOR_CORES):
        raise LabError(f'products = "tensor-cores" needs {task}, which is not finished: lab check {task.split()[1]}')


def recipe(config: CapstoneConfig) -> str:
    """The matrix's name of what the blocks' linears compute in."""
    word = precision_of(config) if config.parts == "mine" else ""
    if word == "fp8":
        return find_recipe("week16", None)[0]
    return find_recipe(config.precision.backend, config.precision.recipe)[0]


def precision_of(config: CapstoneConfig) -> str:
    """What `mixed_precision` was, of a run with your parts. LabError for a [precision] that they do not know."""
    requested = {"backend": config.precision.backend, "recipe": config.precision.recipe}
    for word, table in MIXED.items():
        if requested == {"recipe": None, **table}:
            return word
    raise LabError(
        f'parts = "mine" computes in your own linears: say mixed_precision = "fp8", "bf16" or "fp32" in place of '
        f"backend {requested['backend']!r}"
    )


def setup_of(config: CapstoneConfig) -> Setup:
    """What `assemble` is given, of a configuration that `degrees` has filled in."""
    p, word = config.parallel, precision_of(config)
    return Setup(
        config.resolved_model,
        dp=p.dp,
        tp=p.tp,
        pp=p.pp,
        zero=p.zero,
        micro=config.accumulation,
        precision=word,
        rest="fp32" if word == "fp32" else config.rest,
        seed=config.seed,
        betas=config.betas,
        adam_eps=config.adam_eps,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
    )
