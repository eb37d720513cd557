"""What the notebook runs, on real ranks (threads): given, so that a cell is a few lines and its data are real.

messages_of    one block's collectives, forward and backward, with their ring bytes
kept_by        what a block keeps for backward
loss_numbers   how many numbers a token your loss sends
hidden         which share of an all-reduce your overlapped linear hides, on the virtual wire at real sizes
piped          a schedule, really run by your `run_schedule` on P ranks
runs           several of them, for the chart: one that fails is reported and left out
on_wire        its ledgers, replayed with steps of equal length
holders        which rank has which heads of the four weights
memory         what each way to spread a model divides
comes_back     whether a schedule ends when some of its sends wait for their receivers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from labkit.comm.autopsy import RanksFailed
from labkit.comm.ledger import Ledger
from labkit.comm.ranks import run_ranks
from labkit.comm.topology import Topology
from labkit.comm.wire import Replay, replay
from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer, init_weights
from week15_tp_attention import attention, overlap, pipeline, vocab
from week15_tp_attention.given.blocks import OWN, Shape, own_weights, parts, whole_weights
from week15_tp_attention.given.clock import kept_bytes

BLOCK = Shape(B=1, T=32, D=64, F=224, n_heads=8, n_kv_heads=4)  # Llama's proportions: F = 3.5 D
RATE = 600e12  # FLOP/s of a bfloat16 product on an H200, about (the records have 580 to 680)
NVLINK = 354e9  # bytes/s: an all-reduce of 1 GiB on four H200s (week 13)


class Message(NamedTuple):
    """A collective of one rank: "forward" or "backward", its kind, the bytes that a ring would send for it."""

    phase: str
    kind: str
    ring_bytes: float


def ring_bytes(kind: str, nbytes: int, N: int) -> float:
    """What a ring sends for a collective, from the ledger's payload."""
    return (2 if kind == "all_reduce" else 1) * (N - 1) / N * nbytes


def messages_of(contender: str, N: int = 4) -> list[Message]:
    """Rank 0's collectives in one forward and backward of a block (see given/blocks.py), in order. bfloat16's bytes."""

    def job(group: Any) -> None:
        block, x = _block(contender, group)
        group.barrier()
        y = block(x)
        group.barrier()
        y.sum().backward()

    messages, phase = [], "before"
    for event in run_ranks(job, size=N, backend="threads", timeout=60.0).ledgers[0].events:
        if event.kind == "barrier":
            phase = "forward" if phase == "before" else "backward"
        elif phase != "before" and event.bytes:
            messages.append(Message(phase, event.kind, ring_bytes(event.kind, event.bytes, N) / 2))
    return messages


def kept_by(contender: str, N: int = 4) -> int:
    """Bytes that a rank keeps for the block's backward, in bfloat16: half of the float32 that runs here."""

    def job(group: Any) -> int:
        block, x = _block(contender, group)
        return kept_bytes(lambda: block(x), [*block.parameters(), block.cos, block.sin])

    return run_ranks(job, size=N, backend="threads", timeout=60.0)[0] // 2


def _block(contender: str, group: Any) -> tuple[Any, torch.Tensor]:
    whole = whole_weights(BLOCK, group.device, torch.float32)
    block = OWN[contender](own_weights(whole, BLOCK, group), group, BLOCK, parts(compiled=False))
    T = BLOCK.T // group.size if block.cut_along_T else BLOCK.T
    drawn = torch.Generator().manual_seed(5)
    return block, torch.randn(BLOCK.B, T, BLOCK.D, generator=drawn).requires_grad_()


def loss_numbers(V: int = 256, N: int = 4, tokens: int = 64) -> float:
    """Numbers a token in the collectives of your `parallel_cross_entropy`, forward and backward."""

    def job(group: Any) -> None:
        first, end = vocab.vocab_range(V, N, group.rank)
        logits = torch.randn(1, tokens, end - first).requires_grad_()
        targets = torch.randint(V, (1, tokens), generator=torch.Generator().manual_seed(0))
        vocab.parallel_cross_entropy(logits, targets, V, group).backward()

    ledger = run_ranks(job, size=N, backend="threads", timeout=60.0).ledgers[0]
    return sum(event.bytes for event in ledger.events) / 4 / tokens


def hidden(D: int, N: int, wire: float = NVLINK, T: int = 8192) -> float:
    """The share (0 to 1) of the backward's all-reduce that your overlapped linear, D to D features, hides behind its
    product for dW: T positions in bfloat16 on N ranks, on a switch with `wire` bytes/s."""

    def job(group: Any) -> None:
        drawn = torch.Generator().manual_seed(0)
        x = torch.randn(1, 8, 16, generator=drawn).requires_grad_()
        weight = torch.randn(8, 16, generator=drawn).requires_grad_()
        overlap.overlapped_column_linear(x, weight, group).sum().backward()

    ledgers = run_ranks(job, size=N, backend="threads", timeout=60.0).ledgers
    product = 2 * T * D * (D / N) / RATE

    def sized(change: dict[str, Any]) -> float:
        return replay([_changed(ledger, change) for ledger in ledgers], Topology.switch(N, 5e-6, wire)).time

    both = sized({"bytes": 2 * T * D, "seconds": product})
    message = sized({"bytes": 2 * T * D, "seconds": 0.0})
    return (product + message - both) / message


def _changed(ledger: Ledger, change: dict[str, Any]) -> Ledger:
    """The same program with other sizes: `bytes` of its collectives, `seconds` of its spans (a number, or by the first
    letter of the label)."""
    data = ledger.to_json()
    for event in data["events"]:
        if event["bytes"] and "bytes" in change:
            event["bytes"] = change["bytes"]
        if event["kind"] == "compute":
            seconds = change["seconds"]
            event["seconds"] = seconds[event["label"][0]] if isinstance(seconds, dict) else seconds
    return Ledger.from_json(data)


# ---- pipelines

TINY = ModelConfig(vocab_size=64, d_model=32, n_layers=4, n_heads=4, n_kv_heads=2, d_ffn=64, max_seq_len=16)


def piped(schedule: str, P: int = 4, M: int = 8, blocking: Sequence[str] = ()) -> tuple[float, list[Ledger]]:
    """(loss, ledgers) of a batch of M micro-batches through P stages of a decoder, by one of pipeline.py's schedules
    and your `run_schedule`. blocking: of "forward" and "gradient", which sends wait for their receivers."""

    def job(group: Any) -> float | None:
        p = group.rank
        stage = Transformer(TINY, layers=range(p * TINY.n_layers // P, (p + 1) * TINY.n_layers // P))
        init_weights(stage, 0)  # by name: the same values whatever the cut
        drawn = torch.Generator().manual_seed(1)
        tokens = torch.randint(TINY.vocab_size, (M, 1, 17), generator=drawn)
        steps = getattr(pipeline, schedule)(P, M, p)
        inputs = list(tokens[..., :-1]) if p == 0 else None
        targets = list(tokens[..., 1:]) if p == P - 1 else None
        shape = (1, 16, TINY.d_model)
        loss = pipeline.run_schedule(stage, steps, inputs, targets, shape, Blocking(group, blocking))
        return None if loss is None else float(loss)

    results = run_ranks(job, size=P, backend="threads", timeout=20.0)
    return results[-1], results.ledgers


def runs(names: Sequence[str], P: int = 4, M: int = 8) -> dict[str, tuple[float, Replay, list[Ledger]]]:
    """(loss, replay with steps of equal length, ledgers) by schedule. The cause of one that does not come back is
    printed, and the others run; where none does, the last one's RanksFailed is raised."""
    done: dict[str, tuple[float, Replay, list[Ledger]]] = {}
    for name in names:
        try:
            loss, ledgers = piped(name, P, M)
        except RanksFailed as failed:
            if name == names[-1] and not done:
                raise
            print(f"{name}: {failed.autopsy.cause}")
        else:
            done[name] = loss, on_wire(ledgers), ledgers
    return done


class Blocking:
    """A group some of whose posted sends wait for their receiver at once."""

    def __init__(self, group: Any, which: Sequence[str]) -> None:
        self.group, self.which = group, which
        self.rank, self.size, self.device = group.rank, group.size, group.device

    def isend(self, tensor: torch.Tensor, dst: int) -> Any:
        if ("forward" if dst > self.rank else "gradient") in self.which:
            self.group.send(tensor, dst)
            return Done()
        return self.group.isend(tensor, dst)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


class Done:
    """A handle of what is over."""

    def wait(self) -> None:
        return None


def on_wire(ledgers: list[Ledger], t_F: float = 1e-3, t_B: float = 2e-3, message: float = 0.0) -> Replay:
    """The run with steps of equal length, `message` seconds for a message. Backward takes twice as long as forward."""
    change = {"seconds": {"F": t_F, "B": t_B}}
    return replay([_changed(ledger, change) for ledger in ledgers], Topology.switch(len(ledgers), message, 1e15))


def idle(run: Replay) -> float:
    """The fraction of the run in which a stage does not compute, mean over the stages."""
    stages = range(len(run.ranks))
    busy = [sum(span.end - span.begin for span in run.spans if span.rank == p) for p in stages]
    return 1 - sum(busy) / len(busy) / run.time


def held(ledger: Ledger) -> int:
    """How many micro-batches' activations a stage has at one time, at most: from the order of its spans."""
    return pipeline.in_flight([(e.label[0], int(e.label[1:])) for e in ledger.events if e.kind == "compute"])


def comes_back(schedule: str, blocking: Sequence[str], P: int = 4, M: int = 8) -> Any:
    """None if the run ends, else the autopsy of its ranks. What a rank raised is raised."""
    try:
        piped(schedule, P, M, blocking)
    except RanksFailed as failed:
        if any(rank["state"] == "raised" for rank in failed.autopsy.to_json()["ranks"]):
            raise  # a fault, or a task that is not written: no answer to this question
        return failed.autopsy
    return None


# ---- who holds what


def holders(n_heads: int, n_kv_heads: int, N: int, d_head: int = 4) -> dict[str, list[list[int]]]:
    """For each of the four weights and each of its heads: the ranks whose slice, as your `slice_weights` cuts it, has
    that head whole. A number of the weight says which row (W_o: column) it is, so the slices show where they are from.
    """
    D, kv = n_heads * d_head, n_kv_heads * d_head
    rows = {"wq": D, "wk": kv, "wv": kv}
    whole = {name: torch.arange(R).float().unsqueeze(1).expand(R, D).contiguous() for name, R in rows.items()}
    whole["wo"] = torch.arange(D).float().expand(D, D).contiguous()
    found: dict[str, list[list[int]]] = {name: [[] for _ in range(len(w) // d_head)] for name, w in whole.items()}
    for r in range(N):
        share = attention.split_heads(n_heads, n_kv_heads, N, r)
        for name, part in attention.slice_weights(whole, share, d_head).items():
            has = (part[0] if name == "wo" else part[:, 0]).tolist()
            for head, ranks in enumerate(found[name]):
                wanted = [float(head * d_head + i) for i in range(d_head)]
                if any(has[at : at + d_head] == wanted for at in range(len(has) - d_head + 1)):
                    ranks.append(r)
    return found


class Memory(NamedTuple):
    """Bytes on the rank that has most: weights with gradient and AdamW's numbers; what is kept for backward."""

    state: float
    kept: float


def memory(layers: int = 4, N: int = 4) -> dict[str, Memory]:
    """Of `layers` blocks and one micro-batch a rank, on one rank and spread over N by each dimension; 16 bytes a
    parameter. FSDP's from its definition, the others' from blocks that ran."""
    whole = sum(w.numel() for w in whole_weights(BLOCK, torch.device("cpu"), torch.float32).values())

    def own(N: int) -> int:
        def job(group: Any) -> int:
            parts_ = own_weights(whole_weights(BLOCK, group.device, torch.float32), BLOCK, group)
            return sum(w.numel() for w in parts_.values())

        return max(run_ranks(job, size=N, backend="threads", timeout=60.0))

    one = kept_by("plain", 1)
    stages = [held(ledger) for ledger in piped("one_f_one_b", N, 2 * N)[1]]
    return {
        "one rank": Memory(16 * whole * layers, one * layers),
        f"FSDP {N}": Memory(16 * whole * layers / N, one * layers),
        f"TP {N}": Memory(16 * own(N) * layers, kept_by("plain", N) * layers),
        f"TP {N}, sequence": Memory(16 * own(N) * layers, kept_by("sequence, gathered again", N) * layers),
        f"PP {N}, 1F1B": Memory(16 * whole * layers / N, one * layers / N * max(stages)),
    }
