"""Try the matrix on this machine: two training steps of a small decoder for every recipe and way to train that it
allows.

    python -m studies.matrix --out week16_fp8/results/h200-matrix.json

What ran is told from the model (how many linears were converted) and from the loss (finite, and not the same twice); a
combination that fails is recorded with its sentence, and the rest goes on. The record is what the table's "yes" points
to.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.precision import matrix
from labkit.record.files import replace_file
from labkit.strict import nearest

# Every dim and the tokens divide by 128, as te's block recipe wants.
MODEL = {"vocab_size": 512, "d_model": 256, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_ffn": 512}
MODEL["max_seq_len"] = 128
STEPS = 2
TRAIN = {"model": MODEL, "steps": STEPS, "seq_len": 128, "batch_size": 4, "eval_every": 0, "lr": 1e-3}
WAYS = ("compile", "checkpointing", "fused")
ACROSS = (matrix.SCHEDULE, matrix.PARAMETERS)  # alone, and with each of the ways: all subsets would be too many
SKIPPED = ("week16 *",)


def combinations(gpu: Any) -> list[tuple[str, tuple[str, ...]]]:
    """(recipe, ways) of everything the matrix allows on this machine; "broken *" stands for one broken recipe."""
    # One process runs them all, and Transformer Engine must be the first in it to load cuDNN: after torch has loaded
    # its own copy of it, it may find another one's parts beside and not import ("undefined symbol" in libcudnn).
    recipes = sorted(
        (recipe for recipe in matrix.RECIPES if recipe not in SKIPPED), key=lambda recipe: not recipe.startswith("te ")
    )
    every = [ways for many in range(len(WAYS) + 1) for ways in itertools.combinations(WAYS, many)]
    every += [(across, *way) for across in ACROSS for way in ((), *((way,) for way in WAYS))]
    return [(recipe, ways) for ways in every for recipe in recipes if not matrix.reasons(config_of(recipe, ways), gpu)]


def config_of(recipe: str, ways: tuple[str, ...]) -> dict[str, Any]:
    """The training config that asks for a recipe of the table in these ways."""
    backend, _, name = recipe.partition(" ")
    precision: dict[str, Any] = {"backend": backend, "recipe": name}
    if backend == "broken":
        precision = {"backend": "broken-unscaled"}
    if "fused" in ways:
        precision["fused"] = True
    if matrix.SCHEDULE in ways:
        precision["schedule"] = {"bf16_first": 1}
    if matrix.PARAMETERS in ways:
        precision["fp8_parameters"] = True
    blocks = "block" if "checkpointing" in ways else "none"
    return {**TRAIN, "precision": precision, "compile": "compile" in ways, "activation_checkpointing": blocks}


def fresh_job(group: Any, config: dict[str, Any], run_dir: Path, cache: Path) -> dict[str, Any]:
    """`train_job` in a rank that has run others before: nothing compiled and no scaling state of theirs is left."""
    import torch

    from labkit.train.job import train_job

    torch._dynamo.reset()
    if "transformer_engine.pytorch" in sys.modules:
        from transformer_engine.pytorch.quantization import FP8GlobalStateManager

        FP8GlobalStateManager.reset()
    return train_job(group, config, run_dir, cache_dir=cache)


def attempt(pool: Any, config: dict[str, Any], cache: Path) -> dict[str, Any]:
    """{"ok", "converted", "losses", "seconds"} of one combination, or {"ok": False, "why"}."""
    begin = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            summary = pool.run(fresh_job, config, Path(folder) / "run", cache, timeout=300.0)[0]
            steps = [json.loads(line) for line in (Path(folder) / "run" / "steps.jsonl").read_text().splitlines()]
    except Exception as error:  # whatever it was, it is the answer
        print(error, file=sys.stderr, flush=True)  # with its traceback, which the record has no room for
        return {"ok": False, "why": " ".join(str(error).split())[:400]}
    losses, asked = [step["loss"] for step in steps], config["precision"]
    plain = asked["backend"] in ("bf16", "fp32") or asked.get("recipe") == "bf16"
    converted, fp8_steps = summary["evidence"]["converted"], summary["fp8_steps"]
    good = len({*losses}) == STEPS and all(isinstance(x, float) and math.isfinite(x) for x in losses)
    # A schedule is one BF16 step and one in FP8; FP8 weights are in every converted linear.
    in_fp8 = STEPS - 1 if "schedule" in asked else STEPS
    good = good and (fp8_steps == 0 if plain else fp8_steps == in_fp8 and converted > 0)
    good = good and summary["evidence"].get("fp8_parameters", converted) == converted
    seconds = round(time.monotonic() - begin, 1)
    return {"ok": good, "converted": converted, "losses": losses, "fp8_steps": fp8_steps, "seconds": seconds}


def words(text: str, kind: str, known: Iterable[str]) -> list[str]:
    """What stands between commas. LabError for what is not in `known`."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    for word in found:
        if word not in known:
            raise LabError(f"the matrix has no {kind} '{word}'{nearest(word, known)}")
    return found


def main(argv: list[str] | None = None) -> int:
    """Try everything, print a line each, write the record. Returns 0 if all that the matrix allows ran."""
    from labkit.comm.ranks import RankPool
    from labkit.record import hardware
    from labkit.record.clean import jsonable, typed_command
    from labkit.record.run import now, versions

    parser = argparse.ArgumentParser(prog="python -m studies.matrix", description="Try the compatibility matrix here.")
    parser.add_argument("--out", type=Path, required=True, help="the record, a JSON file")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--only", default="", help="recipes by comma, for example 'te block,bf16 bf16'")
    parser.add_argument("--ways", default="", help="only combinations made of these, by comma: 'plain,schedule'")
    a = parser.parse_args(argv)
    gpu = matrix.this_gpu(a.device)
    if a.device == "cuda" and gpu is None:
        raise LabError("torch sees no GPU: use --device cpu, or ask `lab doctor` why")
    only = words(a.only, "recipe", matrix.RECIPES) or [*matrix.RECIPES]
    wanted = words(a.ways, "way", (*WAYS, *ACROSS, "plain")) or [*WAYS, *ACROSS, "plain"]
    about = {"kind": "matrix", "started": now(), "command": typed_command(), "device": a.device}
    about |= {"generation": matrix.generation(gpu), "ranks": 1, "train": TRAIN}
    about |= {"finished": None, "hardware": hardware.describe(), "versions": versions()}
    tried: list[dict[str, Any]] = []
    a.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache, RankPool(1, device=a.device) as pool:
        texts = Path(cache) / "text"
        texts.mkdir()
        for k in range(40):
            lines = (f"def f{i}_{k}(x):\n    return x * {k} + {i}\n" for i in range(200))
            (texts / f"m{k}.py").write_text("".join(lines))
        for recipe, ways in combinations(gpu):
            if recipe not in only or not {*(ways or ("plain",))} <= {*wanted}:
                continue
            config = {**config_of(recipe, ways), "data": {"source": [str(texts)], "heldout_fraction": 0.1}}
            result = attempt(pool, config, Path(cache) / "tokens")
            tried.append({"recipe": recipe, "ways": list(ways), **result})
            # After every attempt: one that takes the machine down leaves the others.
            replace_file(a.out, json.dumps(jsonable({**about, "tried": tried}), indent=1) + "\n")
            came = "ran" if result["ok"] else "FAILED: " + result.get("why", "see the losses")
            print(f"{recipe:28s} {' + '.join(ways) or 'plain':32s} {came}", flush=True)
    replace_file(a.out, json.dumps(jsonable({**about, "tried": tried, "finished": now()}), indent=1) + "\n")
    return 0 if all(entry["ok"] for entry in tried) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"studies.matrix: {error}")
