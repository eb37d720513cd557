"""What a checkpoint consists of: the tensors of a model and its optimizer, by name; the generators; the configuration."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.checkpoint import state_dict as dcp
from torch.distributed.tensor import DTensor

from labkit.model.weights import copies
from labkit.train.config import TrainConfig
from labkit.train.optim import MasterAdamW
from labkit.train.recovery import RecoveryConfig

# What may change between save and resume: none of it changes what is computed, beyond the order of additions.
MAY_CHANGE = {"eval_every", "eval_batches", "probe_every", "norms_every", "checkpoint_every", "checkpoint_at_end"}
MAY_CHANGE |= {"keep_checkpoints", "accumulation", "activation_checkpointing", "reduce_once", "reshard_after_forward"}
MAY_CHANGE |= {"compile", *(f"recovery.{key}" for key in RecoveryConfig.model_fields)}  # good steps stay as before


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """{"model": ..., "optimizer": ...}, live tensors under the parameters' own names."""
    weights = dcp.get_model_state_dict(model)
    if isinstance(optimizer, MasterAdamW):
        weights |= optimizer.values(model)
    tensors: dict[str, Any] = {"model": weights}
    if optimizer is not None:
        tensors["optimizer"] = dcp.get_optimizer_state_dict(model, optimizer)
    return tensors


def put_back(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Any]) -> None:
    """Put the filled tensors of `tensors_of` back. An FP8 parameter is rounded anew from its master."""
    if isinstance(optimizer, MasterAdamW):
        # Not by load_state_dict: after it FSDP2 asks each shard for its storage, and an FP8 tensor has none of its own.
        fp8 = optimizer.values(model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name not in fp8:
                    parameter.copy_(tensors["model"][name])
    else:
        dcp.set_model_state_dict(model, tensors["model"])
    if "optimizer" in tensors:
        dcp.set_optimizer_state_dict(model, optimizer, tensors["optimizer"])
    if isinstance(optimizer, MasterAdamW):
        optimizer.restore()


def shapes(model: nn.Module) -> dict[str, list[int]]:
    """Return {name: shape} of the whole weights."""
    weights: dict[str, Any] = dcp.get_model_state_dict(model)
    return {name: list(weight.shape) for name, weight in weights.items()}


def local_bytes(tensors: Any, ranks: int) -> float:
    """Count the bytes that this rank, one of `ranks`, will write: its share of what several ranks hold."""
    if isinstance(tensors, dict):
        return sum(local_bytes(value, ranks) for value in tensors.values())
    if not isinstance(tensors, torch.Tensor):
        return 0
    local = tensors.to_local() if isinstance(tensors, DTensor) else tensors
    return local.nbytes / copies(tensors, ranks)


def settings(config: TrainConfig) -> dict[str, Any]:
    """Flatten the configuration to {"model.d_model": 256, ...}, JSON values; a model given by name as its shape."""

    def flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from flat(inner, f"{path}.{key}" if path else key)
        else:
            yield path, value

    return dict(flat({**config.model_dump(mode="json"), "model": config.resolved_model.model_dump(mode="json")}, ""))


def difference_in_settings(was: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Name the first setting that differs and may not, in a sentence without its end; None if all agree."""
    default = settings(TrainConfig())  # of a setting that did not exist when the checkpoint was made
    for key in sorted({*was, *now}):
        before = was.get(key, default.get(key))
        if key not in MAY_CHANGE and before != now.get(key):
            return f"it was made with {key} = {before!r} and the configuration now says {now.get(key)!r}"
    return None


def difference(was: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first thing in which a checkpoint's run and this one differ, in a sentence without its end; or None."""
    if was["config"] and now["config"] and (other := difference_in_settings(was["config"], now["config"])):
        return other
    if was["data_hash"] and now["data_hash"] and was["data_hash"] != now["data_hash"]:
        return "the training text is not the one it was made with (the files of the source have changed)"
    for name in sorted({*was["parameters"], *now["parameters"]}):
        old, new = was["parameters"].get(name), now["parameters"].get(name)
        if old != new:
            return f"its weight {name} is {old or 'missing'} and the model's is {new or 'missing'}"
    return None


def generators(device: torch.device) -> dict[str, Any]:
    """Return the state of every random generator of this rank."""
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_generators(states: dict[str, Any], device: torch.device) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
