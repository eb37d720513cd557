"""How a step's batch is shared: over ranks, and over micro-batches that are computed one after another."""

from collections.abc import Iterator

import torch
from torch import Tensor

from labkit.errors import LabError


def rows_per_micro_batch(batch_size: int, accumulation: int, shares: int) -> int:
    """Return the sequences of a micro-batch on one rank; LabError if the batch does not divide evenly."""
    parts = shares * accumulation
    if batch_size % parts:
        below = batch_size // parts * parts
        fitting = f"{below} or {below + parts}" if below else f"{parts}"
        raise LabError(
            f"batch_size {batch_size} does not divide by {shares} ranks x {accumulation} "
            f"micro-batches = {parts}: use batch_size {fitting}, or change accumulation"
        )
    return batch_size // parts


def micro_batches(
    tokens: Tensor, share: tuple[int, int], micro_batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Part `share` = (index, count) of a global batch [B, T + 1], in micro-batches (inputs [b, T], targets [b, T])."""
    each = tokens.shape[0] // share[1]
    mine = tokens[share[0] * each : (share[0] + 1) * each]
    if device.type == "cuda":
        mine = mine.pin_memory()  # pageable memory would make the CPU wait for the GPU here
    mine = mine.to(device, non_blocking=True)
    for part in mine.split(micro_batch_size):
        yield part[:, :-1], part[:, 1:]
