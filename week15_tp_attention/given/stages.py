"""The bench's pipeline: two or more stages of the decoder, run by your `run_schedule`, and how long they stood idle.

Each stage's spans are timed where they run (`lanes.Lanes`). From them:

    measured bubble    1 - (seconds in F and B of the stage that computes most) / (seconds of the batch)
    derived bubble     (P-1) / (M+P-1), for stages of equal steps: your `pipeline.bubble`

The measured one has the messages in it, and the other stages' longer steps.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer
from labkit.parallel.stages import stage_layers
from week15_tp_attention import pipeline
from week15_tp_attention.given.lanes import Lanes


class InBF16(nn.Module):
    """A stage that computes in bfloat16 and is handed, and hands on, float32."""

    def __init__(self, stage: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.stage, self.kind = stage, device.type

    def forward(self, x: Tensor, *targets: Tensor) -> Tensor:
        with torch.autocast(self.kind, torch.bfloat16, enabled=self.kind == "cuda"):
            return self.stage(x, *targets).float()


def measure(
    group: Any, config: ModelConfig, core: nn.Module | None, sizes: tuple[int, int], Ms: tuple[int, ...]
) -> list[dict[str, Any]]:
    """A row for each schedule and M: {"schedule", "M", "seconds", "derived", "measured", "in_flight_bytes", "spans",
    "loss"}; spans by stage, of the last of three batches. sizes: (sequences, positions) of a micro-batch."""
    P, p, device = group.size, group.rank, group.device
    B, T = sizes
    torch.manual_seed(p)
    with torch.device(device):
        stage = Transformer(config, layers=stage_layers(config, P, p))
    for weight in stage.parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.02)
    for block in stage.blocks() if core is not None else ():
        block.attn.core = core  # type: ignore[assignment]  # compiled
    lanes, wrapped = Lanes(group), InBF16(stage, device)
    lanes.connect()
    data = torch.Generator("cpu").manual_seed(0)
    rows = []
    for M in Ms:
        tokens = torch.randint(config.vocab_size, (M, B, T + 1), generator=data).to(device)
        inputs = list(tokens[..., :-1]) if p == 0 else None
        targets = list(tokens[..., 1:]) if p == P - 1 else None
        for name in ("one_at_a_time", "gpipe", "one_f_one_b"):
            steps = getattr(pipeline, name)(P, M, p)
            for _ in range(3):
                stage.zero_grad()
                group.barrier()
                if lanes.cuda:
                    torch.cuda.synchronize()
                    torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated() if lanes.cuda else 0
                start = lanes.mark()
                loss = pipeline.run_schedule(wrapped, steps, inputs, targets, (B, T, config.d_model), lanes)
                spans = lanes.spans(start)
                peak = torch.cuda.max_memory_allocated() - before if lanes.cuda else 0
            own = {"spans": spans, "peak": peak, "loss": None if loss is None else float(loss)}
            every: list[dict[str, Any]] = share(own, group)
            rows.append(_row(name, P, M, every))
    return rows


def _row(name: str, P: int, M: int, every: list[dict[str, Any]]) -> dict[str, Any]:
    total = max(end for rank in every for _, _, end in rank["spans"])
    busy = [sum(end - begin for _, begin, end in rank["spans"]) for rank in every]
    return {
        "schedule": name,
        "P": P,
        "M": M,
        "seconds": total,
        "busy": busy,
        "measured": 1 - max(busy) / total,
        "derived": (P - 1) / P if name == "one_at_a_time" else pipeline.bubble(P, M),
        "peak_bytes": [rank["peak"] for rank in every],
        "spans": [rank["spans"] for rank in every],
        "loss": every[-1]["loss"],
    }


def share(own: dict[str, Any], group: Any) -> list[dict[str, Any]]:
    """Every rank's small dictionary, on every rank."""
    import json

    data = torch.tensor(list(json.dumps(own).encode()), dtype=torch.uint8, device=group.device)
    length = group.all_reduce(torch.tensor([len(data)], device=group.device), "max")
    padded = torch.full((int(length),), 32, dtype=torch.uint8, device=group.device)
    padded[: len(data)] = data
    gathered = group.all_gather(padded).view(group.size, -1).cpu()
    return [json.loads(bytes(row.tolist())) for row in gathered]
