"""`lab compare --model FILE`: the file becomes settings as of `--set`, put under those that were typed."""

import json
from collections.abc import Iterable
from pathlib import Path

from labkit.compare import memory
from labkit.compare.plan import check_device, gpu_memory_gib
from labkit.compare.preset import Preset, load_preset
from labkit.compare.terminal import parameters
from labkit.model.config import ModelConfig
from labkit.model.flops import flops_per_token, n_params
from labkit.model.shape_file import load_decoder, name_of
from labkit.train.config import TrainConfig

FILLED = 0.85  # of a GPU, by the prediction for BF16: FP8 took up to 8 % more, and the driver's share comes on top
NOTE = (
    "Speed and loss are of this model's shapes, trained from random weights. Text, learning rate and steps are the "
    "preset's."
)


def settings(preset: str, path: Path, typed: Iterable[str] = ()) -> list[str]:
    """KEY=VALUE for each setting that the model in `path` changes in a preset; typed: settings that come after them.

    LabError: an unknown preset, no model or none that can be trained; no GPU where the preset wants one.
    """
    own, base, typed = load_decoder(path, 1), load_preset(preset), list(typed)
    title = f"{name_of(path)}, {parameters(n_params(own))}: FP8's speed, and its loss against BF16's"
    out = [f"title={_toml(title)}", f"note={_toml(NOTE)}", *shapes(base.config(base.baseline()), own, "train")]
    if base.speed:
        out += shapes(base.speed_config(base.baseline()), own, "speed.train")
    # What is typed of the model holds in both parts: the file's settings of the speed part give way to it.
    written = {each.partition("=")[0] for each in out}
    out += [f"speed.{each}" for each in typed if any(f"speed.{each}".startswith((f"{k}=", f"{k}.")) for k in written)]
    whole, parts = load_preset(preset, [*out, *typed]), ("speed", "safety") if base.speed else ("safety",)
    load_decoder(path, max(whole.config_of(part, whole.baseline(), None, 1).seq_len for part in parts))
    # The rates that the preset expects of its arms, as those of a model with so many more FLOPs a token.
    for part in parts:
        both = [each.config_of(part, each.baseline(), None, 1) for each in (base, whole)]
        before, after = (flops_per_token(each.resolved_model, each.seq_len, causal=True) for each in both)
        rates = {name: getattr(arm.expect, part) for name, arm in base.arms.items() if not arm.of}
        out += [f"arms.{name}.expect.{part}={rate * before / after:.4g}" for name, rate in rates.items() if rate]
    world, have = check_device(whole), gpu_memory_gib(whole)
    return [*out, *batches(whole, have, world)] if have else out


def batches(whole: Preset, have: float, world: int) -> list[str]:
    """Settings for how much is computed at a time on GPUs of `have` GiB."""
    config, out = whole.config(whole.baseline()), []
    if (parts := micro_batches(config, have, world)) != config.accumulation:
        out.append(f"train.accumulation={parts}")
        out += [f"speed.train.accumulation={config.accumulation}"] if whole.speed else []
    if whole.speed and whole.speed.batch_by_memory:
        timed = whole.speed_config(whole.baseline(), have, world)
        rows = sequences(timed, have, world, most=max(whole.speed.batch_by_memory.values()))
        out.append(f'speed.batch_by_memory={{"0" = {rows}}}')
    return out


def sequences(config: TrainConfig, have: float, world: int, most: int) -> int:
    """Sequences of a GPU and step that are predicted to fit into `have` GiB: at least 1, at most `most`."""
    sizes = range(most, 1, -1)
    return next((n for n in sizes if _fits(config.replace(batch_size=n * world, accumulation=1), have, world)), 1)


def micro_batches(config: TrainConfig, have: float, world: int) -> int:
    """The fewest micro-batches in which the batch is predicted to fit; a sequence each where none does."""
    rows = config.batch_size // world
    shares = [n for n in range(config.accumulation, rows + 1) if config.batch_size % (n * world) == 0]
    fitting = (n for n in shares if _fits(config.replace(accumulation=n), have, world))
    return next(fitting, max(shares, default=config.accumulation))


def _fits(config: TrainConfig, have: float, world: int) -> bool:
    return memory.predict(config, world)["peak"] <= FILLED * have * memory.GIB


def shapes(before: TrainConfig, own: ModelConfig, table: str) -> list[str]:
    """Settings that put the model into a table of the preset that trains `before`."""
    shape = ", ".join(f"{key} = {_toml(value)}" for key, value in own.model_dump().items())
    length, vocabulary = min(before.seq_len, own.max_seq_len), min(before.data.vocab_size, own.vocab_size)
    return [f"{table}.model={{{shape}}}", f"{table}.seq_len={length}", f"{table}.data.vocab_size={vocabulary}"]


def _toml(value: object) -> str:
    value = list(value) if isinstance(value, tuple) else value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)
