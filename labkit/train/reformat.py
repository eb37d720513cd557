"""Reformatting: a checkpoint with FP8 parameters from one without, and back (`lab checkpoint convert`).

    to fp8     each weight that the FP8 backend converted becomes its rounding to the FP8 grid, and the FP32 weight
               that it was becomes its master in AdamW's state
    to bf16    each FP8 weight becomes an ordinary one of the same value, or on request its master

FP8 -> BF16 -> FP8 gives the same weights: a value on the grid fits into BF16, and scales are powers of two.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from labkit.errors import LabError
from labkit.precision.base import TILE
from labkit.precision.flags import of_operand, title
from labkit.precision.torchao_backend import float8_utils
from labkit.train import manifest
from labkit.train.checkpoint import quiet
from labkit.train.optim import MASTER

FORMATS = ("bf16", "fp8")


def find_checkpoint(path: str | Path) -> Path:
    """Return `path` itself, or the newest whole checkpoint of the run in it. LabError: none there."""
    path = Path(path)
    if (path / manifest.NAME).exists():
        return path
    for folder in (path / "checkpoints", path):
        if steps := manifest.whole_steps(folder):
            return folder / manifest.folder_name(steps[0])
    raise LabError(f"{path} holds no checkpoint: give a run's folder, or one of its checkpoints/step-... folders")


def read_whole(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; LabError if it, or any file of it, is damaged."""
    body, problem = manifest.read(folder)
    if problem := problem or manifest.damaged(folder, sorted(body["files"].items())):
        raise LabError(f"{folder} is damaged: {problem}")
    return body


def reformat(source: str | Path, target: str | Path, to: str, *, masters: bool = False) -> Path:
    """Write the checkpoint `source` (a run's newest, or a checkpoint's folder) as one of the new run folder `target`,
    with FP8 parameters (to="fp8") or without (to="bf16"); return its folder. masters, for to="bf16": take the
    optimizer's FP32 weights, not what the model computed with. LabError: whatever cannot be converted."""
    if to not in FORMATS:
        raise LabError(f"a checkpoint is converted to {' or '.join(FORMATS)}, not to '{to}'")
    folder, fp8 = find_checkpoint(source), to == "fp8"
    body = read_whole(folder)
    flags = _convertible_flags(folder, body, fp8)
    final = Path(target) / "checkpoints" / folder.name
    if final.exists():
        raise LabError(f"{final} exists: choose another folder for the converted run")
    tensors = load_flat(folder)
    for name in flags["linears"]:
        weight, master = f"model.{name}", f"optimizer.state.{name}.{MASTER}"
        if fp8:
            tensors[master] = tensors[weight].float()
            tensors[weight] = _round_as_fp8(tensors[master], of_operand(flags["amax_epsilon"], "weight"))
        else:
            fp32 = tensors.pop(master)
            tensors[weight] = fp32 if masters else tensors[weight]
    about = {key: value for key, value in body.items() if key != "files"}
    about["config"] = about["config"] and {**about["config"], "precision.fp8_parameters": fp8}
    about["precision"] = {**about["precision"], "fp8_parameters": fp8}
    about["converted"] = {"to": to, "from": folder.parent.parent.name or folder.name}
    partial = final.with_name(final.name + manifest.PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with quiet():
            dcp.save(tensors, storage_writer=dcp.FileSystemWriter(partial), no_dist=True)
        for file in folder.glob("rank-*.pt"):
            shutil.copyfile(file, partial / file.name)
        manifest.write(partial, {p.name: manifest.describe(p) for p in sorted(partial.iterdir())}, about)
        manifest.publish(partial, final)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise LabError(f"could not write {final}: {error.strerror or error}") from None
    return final


def _convertible_flags(folder: Path, body: dict[str, Any], fp8: bool) -> dict[str, Any]:
    """Return the precision flags of a checkpoint; LabError if it cannot be converted."""
    flags = body.get("precision")
    if not flags:
        raise LabError(f"{folder} does not say what precision it was made in: nothing to convert")
    if flags["fp8_parameters"] == fp8:
        has = "FP8 parameters" if flags["fp8_parameters"] else "parameters in high precision"
        raise LabError(f"{folder} has {has} already")
    if flags["scaling"] != "block" or not of_operand(flags["power_of_two"], "weight"):
        alone = "FP8 parameters go with recipe block and its power-of-two scales alone"
        raise LabError(f"{folder} is of {title(flags)}, and {alone}: train with te block or emulated block")
    return flags


def load_flat(folder: Path) -> dict[str, Any]:
    """All that the ranks wrote together, whole: {"model.<name>": tensor, "optimizer.state.<name>.exp_avg": ..., ...}."""
    reader = dcp.FileSystemReader(folder)
    stored = reader.read_metadata().state_dict_metadata
    tensors: dict[str, Any] = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype) if isinstance(entry, TensorStorageMetadata) else None
        for key, entry in stored.items()
    }
    with quiet():
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def _round_as_fp8(weight: Tensor, epsilon: float) -> Tensor:
    """The values of an FP8 parameter made of FP32 `weight` [M, N], tile by tile. epsilon: the least amax of a tile."""
    torchaos, e4m3, held = float8_utils(), torch.float8_e4m3fn, weight.clone()
    for tile in (tile for rows in held.split(TILE) for tile in rows.split(TILE, dim=1)):
        amax = torchaos.tensor_to_amax(tile).clamp(min=epsilon)
        scale = torchaos.amax_to_scale(amax, e4m3, round_scales_to_power_of_2=True)
        tile.copy_(torchaos.to_fp8_saturated(tile * scale, e4m3).float() / scale)
    return held
