"""What the notebook runs of your stretch tasks, on ranks in threads (given).

pipelines        15.10: 1F1B's order and your zero-bubble schedule, both really run; idle time and what is kept
balance          15.11: how much each rank multiplies in causal ring attention, in order and zigzag
sequence_bytes   15.11 and 15.12: what a rank sends, by the number of key/value heads
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

from labkit.comm.algorithms import ring_bytes
from labkit.comm.ledger import Ledger
from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Topology
from labkit.comm.wire import replay
from labkit.model.decoder import Transformer, init_weights, rotary_tables
from week15_tp_attention import pipeline
from week15_tp_attention.given.experiments import TINY, idle
from week15_tp_attention.scenarios import Work


def pipelines(P: int = 4, M: int = 8) -> str:
    """A batch through P stages by two schedules of F, B and W, each step a millisecond on the virtual wire."""
    from week15_tp_attention.stretch import zero_bubble

    lines = [
        f"{P} stages, {M} micro-batches        idle    micro-batches between F and W, by stage",
        f"1F1B, backward in one (15.6)    {pipeline.bubble(P, M):5.1%}",
    ]
    for name, schedule in (("W right behind B", zero_bubble.at_once), ("zero bubble", zero_bubble.zero_bubble)):
        ledgers = _piped(schedule, P, M)
        for ledger in ledgers:
            for event in ledger.events:
                event.seconds = 1e-3 if event.kind == "compute" else event.seconds
        run = replay(ledgers, Topology.switch(P, 0.0, 1e15))
        held = [_most([e.label[0] for e in ledger.events if e.kind == "compute"]) for ledger in ledgers]
        lines.append(f"{name:31s} {idle(run):5.1%}    {held}")
    return "\n".join([*lines, f"derived for the zero bubble     {zero_bubble.bubble(P, M):5.1%}"])


def _most(kinds: Sequence[str]) -> int:
    return max(accumulate({"F": 1, "B": 0, "W": -1}[kind] for kind in kinds))


def _piped(schedule: Callable[[int, int, int], list[tuple[str, int]]], P: int, M: int) -> list[Ledger]:
    from week15_tp_attention.stretch import zero_bubble

    def job(group: Any) -> None:
        p, left = group.rank, zero_bubble.Left()
        layers = range(p * TINY.n_layers // P, (p + 1) * TINY.n_layers // P)
        stage = Transformer(TINY, linear=lambda name, i, o: zero_bubble.Linear(i, o, left), layers=layers)
        init_weights(stage, 0)
        tokens = torch.randint(TINY.vocab_size, (M, 1, 17), generator=torch.Generator().manual_seed(1))
        inputs = list(tokens[..., :-1]) if p == 0 else None
        targets = list(tokens[..., 1:]) if p == P - 1 else None
        shape = (1, 16, TINY.d_model)
        zero_bubble.run_schedule(stage, left, schedule(P, M, p), inputs, targets, shape, group)

    return run_ranks(job, size=P, backend="threads", timeout=30.0).ledgers


def balance(N: int = 4) -> str:
    """Multiplications by rank, forward, in a causal attention over N ranks, as a multiple of their mean."""
    from week15_tp_attention.stretch import ring_attention

    lines = [f"{N} ranks, causal        work of ranks 0 to {N - 1}, 1 for their mean"]
    for name, layout in (("in order", ring_attention.in_order), ("zigzag", ring_attention.zigzag)):
        work = [done for done, _ in _rings(layout, N, 4)]
        mean = sum(work) / N
        lines.append(f"{name:22s}  {'  '.join(f'{one / mean:.2f}' for one in work)}")
    return "\n".join(lines)


def _rings(layout: Any, N: int, k: int) -> list[tuple[int, int]]:
    """(multiplications forward, bytes sent both ways) of each rank: 1 sequence of 16 N positions, 8 query and k
    key/value heads of 4."""
    from week15_tp_attention.stretch import ring_attention

    def job(group: Any) -> tuple[int, int]:
        drawn = torch.Generator().manual_seed(group.rank)
        q, key, value = (torch.randn(1, heads, 16, 4, generator=drawn).requires_grad_() for heads in (8, k, k))
        with torch.no_grad(), Work(group) as work:
            ring_attention.ring_attention(q, key, value, layout, group)
        before = ring_bytes(group.ledger)
        ring_attention.ring_attention(q, key, value, layout, group).sum().backward()
        return sum(size for (size, _), _ in work.seen), ring_bytes(group.ledger) - before

    return list(run_ranks(job, size=N, backend="threads", timeout=30.0))


def _exchanges(N: int, k: int) -> int:
    """Bytes that a rank sends in the turns of a layer of the same sizes, both ways; its weights' gradients aside."""
    from week15_tp_attention.stretch import ulysses

    def job(group: Any) -> int:
        drawn = torch.Generator().manual_seed(0)
        sizes = {"wq": (32, 32), "wk": (4 * k, 32), "wv": (4 * k, 32), "wo": (32, 32)}
        layer = ulysses.UlyssesAttention(
            {name: torch.randn(size, generator=drawn) for name, size in sizes.items()}, group, 8, k
        )
        cos, sin = rotary_tables(16 * N, 4, 10_000.0, torch.device("cpu"))
        layer(torch.randn(1, 16, 32, generator=drawn).requires_grad_(), cos, sin).sum().backward()
        return sum(event.bytes for event in group.ledger.events if event.kind == "send")

    return run_ranks(job, size=N, backend="threads", timeout=30.0)[0]


def sequence_bytes() -> str:
    """Bytes of a rank, forward and backward, of ring attention and of exchanged heads: 8 query heads."""
    from week15_tp_attention.stretch import ring_attention

    lines = ["ranks  key/value heads  ring, bytes  heads exchanged, bytes"]
    for N, k in ((2, 8), (2, 2), (4, 8), (4, 4), (8, 8)):
        ring = _rings(ring_attention.zigzag, N, k)[0][1]
        lines.append(f"{N:5d}  {k:15d}  {ring:11,d}  {_exchanges(N, k):22,d}")
    few = _rings(ring_attention.zigzag, 4, 1)[0][1]
    return "\n".join([*lines, f"{4:5d}  {1:15d}  {few:11,d}  refused: one head cannot be dealt out to four ranks"])
