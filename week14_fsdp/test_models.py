"""The checks of the memory model (14.1) and of exposed communication (14.5). Read them: nothing is hidden.

What 14.1 predicts is held against a meter: a small network really runs here, in one process, and every storage that
torch makes is weighed. What 14.5 finds in a trace is held against a picture of it: a row of cells, one for each
microsecond.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from labkit.checks import call_alone, call_each, expect, field, same, task
from labkit.checks.verdict import NO_RESULT, CheckFailed

KINDS = ("weights", "gathered", "gradients", "masters", "moments", "activations", "logits")

# ---- 14.1


class Scale(TorchDispatchMode):
    """Weighs storages. given/meter.py says how; the judge has its own."""

    def __init__(self, without):
        super().__init__()
        self.seen, self.weights = {}, []
        self.without = {StorageWeakRef(t.untyped_storage()).cdata for t in without}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                ref = StorageWeakRef(leaf.untyped_storage())
                if ref.cdata not in self.without:
                    self.seen[ref.cdata] = ref
        self.weights.append(self.now())
        return result

    def now(self):
        storages = [torch.UntypedStorage._new_with_weak_ptr(ref.cdata) for ref in self.seen.values()]
        return sum(s.nbytes() for s in storages if s is not None)


def a_model(seed):
    """Counts, drawn: (root, block, blocks, width, saved, vocab), and N."""
    g = np.random.default_rng(seed % 2**63)
    while True:
        D, H, L, V, N = (int(g.integers(*bounds)) for bounds in ((20, 40), (60, 120), (3, 7), (90, 200), (2, 9)))
        # A block of the run below: w1 [H, D], w2 [D, H]. It keeps its input, and the hidden numbers.
        root, block = V * D + D, 2 * H * D
        P = root + L * block
        # Cut by itself, each rounds up: that must show beside one vector, rounded up once, and beside rounding down.
        if P % N and -(-root // N) + L * -(-block // N) > -(-P // N) and D != V:
            return (root, block, L, D, D + H, V), H, N


def run(sizes, H, tokens, checkpointed):
    """A decoder of these sizes, really: FP32, one forward and backward. Bytes of weights, gradients and moments, and of
    the activations when the backward begins; checkpointed: when it has computed the last block again. Not the logits."""
    _, _, L, D, _, V = sizes
    generator = torch.Generator().manual_seed(0)
    embed = torch.randn((V, D), generator=generator).requires_grad_()
    gain = torch.ones(D).requires_grad_()
    w1 = [torch.randn((H, D), generator=generator).mul_(0.1).requires_grad_() for _ in range(L)]
    w2 = [torch.randn((D, H), generator=generator).mul_(0.1).requires_grad_() for _ in range(L)]
    params = [embed, gain, *w1, *w2]
    x = torch.randn((tokens, D), generator=generator)
    dy, left = torch.ones_like(x), []

    def block(x, a, b):
        y = F.relu(F.linear(x, a)) @ b.T  # saves x and relu's result, once
        left.append(scale.now() - y.nbytes)  # what the blocks keep; the last y belongs to what follows
        return y

    scale = Scale([*params, dy])
    with scale:
        h = x.clone().requires_grad_()
        for a, b in zip(w1, w2):
            h = checkpoint(block, h, a, b, use_reentrant=False, early_stop=False) if checkpointed else block(h, a, b)
        h.backward(dy)
    moments = [torch.zeros_like(p) for p in params for _ in range(2)]
    grads = [p.grad for p in params if p.grad is not None]
    return (
        sum(p.untyped_storage().nbytes() for p in params),
        sum(g.untyped_storage().nbytes() for g in (*grads, torch.zeros_like(embed), torch.zeros_like(gain))),
        sum(m.untyped_storage().nbytes() for m in moments),
        left[L] - h.nbytes if checkpointed else left[-1],
    )


def ask(questions):
    got = call_alone("scenarios.memory", questions)
    if not isinstance(got, list) or len(got) != len(questions):
        raise CheckFailed(NO_RESULT, "memory gave no answers that can be read")
    return got


@task("14.1", points=3)
@pytest.mark.parametrize("checkpointed", [pytest.param(False, id="plain"), pytest.param(True, id="checkpointed")])
def test_against_the_meter(checkpointed, seed):
    """One rank, FP32: what a real run holds"""
    sizes, H, _ = a_model(seed)
    tokens = 30 + seed % 50
    (got,) = ask([(sizes, "ddp", 1, tokens, 4, checkpointed)])  # first: a blank says so before anything runs
    weights, gradients, moments, activations = run(sizes, H, tokens, checkpointed)
    root, block, L, *_, V = sizes
    P = root + L * block
    same(field(got, "weights"), weights, what="weights", looks_like={"two bytes a parameter, and this is FP32": 2 * P})
    same(field(got, "gradients"), gradients, what="gradients")
    same(field(got, "moments"), moments, what="moments", looks_like={"one moment: AdamW has two": 4 * P})
    same(
        field(got, "masters"),
        0,
        what="masters: FP32 weights are their own",
        looks_like={"FP32 weights need no masters": 4 * P},
    )
    same(field(got, "gathered"), 0, what="gathered: nothing is cut")
    causes = activation_causes(sizes, tokens, 4, checkpointed)
    same(field(got, "activations"), activations, what=f"activations of {tokens} tokens", looks_like=causes)
    logits = tokens * V * (4 + 4 + 4)
    same(
        field(got, "logits"),
        logits,
        what="logits",
        looks_like={"one copy: log-softmax and gradient are there at the same time": tokens * V * 4},
    )


def activation_causes(sizes, tokens, b, checkpointed):
    """What mistakes give for the activations."""
    _, _, L, D, saved, _ = sizes
    if not checkpointed:
        return {"one block alone": tokens * saved * b}
    return {
        "the inputs of the blocks alone: one block is computed again, and then it is there": tokens * L * D * b,
        "as without checkpointing": tokens * L * saved * b,
        "the input of the block that is computed again counts twice": tokens * (L * D + saved) * b,
        "the kept inputs in FP32: they are of the activations' dtype": tokens * ((L - 1) * D * 4 + saved * b)
        if b < 4
        else None,
    }


def activation_bytes(sizes, tokens, checkpointed):
    """Numbers that the blocks keep."""
    _, _, L, D, saved, _ = sizes
    return tokens * ((L - 1) * D + saved if checkpointed else L * saved)


def held_by(sizes, N, stage):
    """Numbers of the largest part, found by cutting: all as one vector, or under zero3 each flat parameter by itself."""
    root, block, L, *_ = sizes
    vectors = [root, *[block] * L] if stage == "zero3" else [root + L * block]
    return sum(max(len(c) for c in torch.empty(P).chunk(N)) for P in vectors)


def bytes_of(sizes, stage, N, tokens, b, checkpointed=False):
    """What the table in the module says: a thing is whole, or cut. {kind: bytes}"""
    root, block, L, _, _, V = sizes
    P, cut = root + L * block, {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[stage]
    mine = held_by(sizes, N, stage)
    want = {
        "masters": (mine if cut >= 1 else P) * 4 if b == 2 else 0,
        "moments": (mine if cut >= 1 else P) * 8,
        "gradients": (mine if cut >= 2 else P) * b,
        "weights": P * b,
        "gathered": 0,
        "activations": b * activation_bytes(sizes, tokens, checkpointed),
        "logits": tokens * V * (2 * b + 4),
    }
    if cut == 3:
        want |= {
            "weights": 0 if b == 2 else mine * 4,
            "gathered": (root + min(2, L) * block) * b,
            "gradients": mine * 4 + (root + block) * b,
        }
    return want


@task("14.1", points=5)
@pytest.mark.parametrize("stage", ["ddp", "zero1", "zero2", "zero3"])
def test_stage(stage, seed):
    """Bytes by kind, in BF16 and in FP32, on many ranks, checkpointed and not; a model of one block"""
    many, _, N = a_model(seed + 5)
    tokens, cut = 7 + seed % 13, {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[stage]
    alone = (*many[:2], 1, *many[3:])
    cases = [(sizes, n, b, c) for sizes in (many, alone) for n in (N, 1) for b in (2, 4) for c in (False, True)]
    for (sizes, n, b, c), one in zip(cases, ask([(sizes, stage, n, tokens, b, c) for sizes, n, b, c in cases])):
        root, block, L, _, _, V = sizes
        P, mine = root + L * block, held_by(sizes, n, stage)
        want = bytes_of(sizes, stage, n, tokens, b, c)
        whole = {"gradients": b * P} if cut == 2 else {}
        whole |= {"moments": 8 * P} if cut else {}
        whole |= {"masters": 4 * P} if cut and b == 2 else {}

        def by_part(part, cut=cut, whole=(root + block) * b, b=b):
            grads = {2: b * part, 3: 4 * part + whole}
            return {"masters": 4 * part, "moments": 8 * part, "gradients": grads.get(cut)} | (
                {"weights": 4 * part} if cut == 3 else {}
            )

        otherwise = by_part(held_by(sizes, n, "zero1" if cut == 3 else "zero3"))  # cut the other way
        down = by_part(root // n + L * (block // n) if cut == 3 else P // n)
        nearest = by_part(round(root / n) + L * round(block / n) if cut == 3 else round(P / n))
        some, once = min(2, L), activation_bytes(sizes, tokens, c)
        likely = {
            "moments": {"AdamW has two moments, each in FP32": 2 * b * (mine if cut else P)},
            "activations": {"in FP32": 4 * once, "cut over the ranks: no stage shards them": b * once // n},
        }
        if cut == 3:
            likely |= {
                "gathered": {"the root is left out": some * block * b},
                "weights": {"in BF16 the shard is the master: there is no other": mine * b}
                if b == 2
                else {"in FP32 the shard is the weight": 0},
                "gradients": {
                    "the root's whole gradient is left out": mine * 4 + block * b,
                    "two blocks' gradients: one is whole at a time": mine * 4 + (root + 2 * block) * b,
                    "whole gradients in FP32: they come in `dtype`": 4 * (mine + root + block),
                },
            }
        how = "as one vector: each flat parameter is cut by itself, and rounds up"
        how = how if cut == 3 else "each flat parameter by itself: here all parameters are one vector, as in 14.3"
        for kind in KINDS:
            same(
                field(one, kind),
                want[kind],
                what=f"{kind}, {stage} on {n} ranks, {L} blocks, {'BF16' if b == 2 else 'FP32'},",
                looks_like={
                    "whole: this stage cuts it": whole.get(kind) if n > 1 else None,
                    f"cut {how}": otherwise.get(kind),
                    "rounded down: the largest part is expected": down.get(kind) if cut else None,
                    "rounded to the nearest: the largest part is expected": nearest.get(kind) if cut else None,
                    "FP32 weights need no masters": 4 * mine if cut and kind == "masters" and b == 4 else None,
                    "all blocks at once: the others are gone, or have not come": P * b if kind == "gathered" else None,
                    "one block: the next one is on its way": (root + block) * b if kind == "gathered" else None,
                    "two blocks, and there is one": (root + 2 * block) * b if kind == "gathered" and L == 1 else None,
                    "three copies of b bytes: the log-softmax is in FP32": tokens * V * 3 * b
                    if kind == "logits"
                    else None,
                    "two copies: the logits' gradient is missing": tokens * V * (b + 4) if kind == "logits" else None,
                    "the shards' gradients in b bytes: they are summed in FP32": (mine + root + block) * b
                    if kind == "gradients" and cut == 3
                    else None,
                    **likely.get(kind, {}),
                    **(activation_causes(sizes, tokens, b, c) if kind == "activations" else {}),
                },
            )


@task("14.1", points=1)
def test_unknown_stage(seed):
    """Unknown stages, beside the known ones"""
    draw, (sizes, *_) = random.Random(f"stages {seed}"), a_model(seed + 3)
    words = ["".join(draw.choices("demorz0123", k=draw.randint(2, 6))) for _ in range(4)]
    known = ["ddp", "zero1", "zero2", "zero3"]
    words += [f"zero{draw.randint(4, 999)}", draw.choice("abc") + draw.choice(known)]
    unknown = ["", "zero", "zero-3", "ZERO3", "fsdp", *(word for word in words if word not in known)]
    for stage, got in zip(unknown, call_each("scenarios.stage_refused", [(stage, sizes) for stage in unknown])):
        expect(isinstance(got, tuple) and len(got) == 2, "nothing came back")
        mine = [bytes_of(sizes, one, 1, 1, 2)["weights"] for one in known]
        same(got[1], mine, what="weights by stage, on one rank, BF16,")
        expect(got[0] == "ValueError", f"{stage!r} is no stage: a ValueError, but it gave {got[0]}", known=True)


@task("14.1", points=1)
def test_largest_batch(seed):
    """The largest batch that fits: one more does not"""
    cases = []
    for i, stage in enumerate(("ddp", "zero1", "zero2", "zero3")):
        sizes, _, N = a_model(seed + 11 * i)
        for wanted in (0, 1, 2 + (seed + i) % 40, (70_000 if i == 3 else 9000) + seed % 100):
            cases.append((sizes, stage, N, 3 + (seed + i) % 9, 2, bool(i % 2), wanted))
    # How much is needed is given: `memory` is judged by `test_stage`, and this by what is right.
    questions, want = [], []
    for s, stage, N, T, b, c, n in cases:
        none, one = (sum(bytes_of(s, stage, N, tokens, b, c).values()) for tokens in (0, 1))
        fits, over = (none + k * T * (one - none) for k in (n, n + 1))
        for capacity, answer in ((fits, n), (over - 1, n), *(((fits // 2, 0),) if n == 0 else ())):
            questions.append((none, one, s, stage, N, T, b, capacity, c))
            want.append(answer)
    got = call_alone("scenarios.largest_batch", questions)
    below = [n for n in got if isinstance(n, int) and n < 0] if isinstance(got, list) else []
    if below:
        expect(False, f"{below[0]} sequences fit", cause=("a negative batch: where nothing fits, 0 sequences do",))
    same(
        got,
        want,
        what="the largest batches",
        looks_like={
            cause: [max(0, rule(q[7] - q[0], q[5] * (q[1] - q[0]), q)) for q in questions]
            for cause, rule in {
                "in tokens: divide by what a sequence adds": lambda room, each, q: room // (q[1] - q[0]),
                "in tokens, expected sequences": lambda room, each, q: room // each * q[5],
                "rounded up: what does not fit whole does not fit": lambda room, each, _: -(-room // each),
                "what does not grow with the batch counts with every sequence": lambda room, each, q: (
                    q[7] // (q[0] + each)
                ),
                "an exact fit fits": lambda room, each, _: (room - 1) // each,
                "`checkpointed` is not handed on": lambda room, each, q: room // (each * (1 + q[8])),
                "`memory` is asked about another case: hand on what was given": lambda room, each, _: (
                    room // (2 * each)
                ),
            }.items()
        },
    )


# ---- 14.5


TINY = 1e-3  # microseconds: below a cell
CELL = 64  # cells to a microsecond: times are multiples of one, which a float holds exactly
NCCL = ("ncclDevKernel", "ncclKernel")  # by NCCL 2.19 and later, and before


def a_trace(seed, busy=True):
    """A small trace, as torch.profiler writes it: two streams that compute, two that communicate, copies, and what the
    host did."""
    g = np.random.default_rng(seed % 2**63)
    origin, events = int(g.integers(10**6, 10**7)), []

    def eighths(low, high):
        return int(g.integers(low * CELL, high * CELL)) / CELL

    def span(cat, name, begin, length, **args):
        events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 4711 if cat == "cpu_op" else 0,  # a process of the host; the GPU
                "tid": args.get("stream", 1),
                "ts": origin + begin,
                "dur": length,
                "args": args,
            }
        )

    for stream in (7, 8):
        at = eighths(0, 40)
        for _ in range(int(g.integers(12, 18))):
            length = eighths(5, 60)
            name = str(
                g.choice(
                    [
                        "nvjet_tst_128x256_64x4",
                        "flash_fwd_kernel",
                        "void at::native::vectorized_elementwise_kernel",
                        "triton_poi_fused_nccl_like_add",
                    ]
                )
            )
            span("kernel", name, at, length, stream=stream)
            at += length + eighths(0, 50) * int(g.integers(0, 2))
    span("kernel", "nvjet_tst_128x256_64x4", eighths(0, 900), eighths(20, 60), stream=20)  # on NCCL's stream
    for stream, name in (
        (20, "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        (21, "ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"),
    ):
        at = eighths(0, 60)
        for _ in range(int(g.integers(6, 10)) if busy else 0):
            length = eighths(20, 90)
            span("kernel", name, at, length, stream=stream)
            at += length + eighths(0, 60)
    for _ in range(8):
        span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", eighths(0, 900), eighths(20, 60), stream=30)
        span("gpu_memset", "Memset (Device)", eighths(0, 900), eighths(20, 60), stream=30)
        span("cpu_op", str(g.choice(["nccl:all_gather", "aten::mm"])), eighths(0, 900), eighths(20, 90))
        span("gpu_user_annotation", "nccl:_all_gather_base", eighths(0, 900), eighths(20, 90), stream=20)
    span("kernel", "ncclDevKernel_Broadcast_RING_LL", 100, 0, stream=20)
    end = 30 + max(e["ts"] + e["dur"] for e in events) - origin
    span("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", end, 40 if busy else 0, stream=20)  # nothing beside it
    span("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", end, 25, stream=30)  # but a copy
    for e in events[:2]:  # no more than a kernel must have
        del e["args"], e["pid"], e["tid"]
    events.append({"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}})
    events.append({"ph": "i", "name": "Iteration Start", "ts": origin, "s": "g"})
    events.append({"ph": "X", "name": "PyTorch Profiler (0)", "ts": origin, "dur": end})  # no category
    events.append({"ph": "X", "cat": "python_function", "ts": origin, "dur": end})  # no name
    events.append({"ph": "f", "cat": "ac2g", "id": 3, "ts": origin, "bp": "e"})  # an arrow
    events.append({"ph": "s", "cat": "kernel", "name": "nvjet", "ts": origin, "dur": end})  # no span
    first = {"ph": "X", "cat": "cpu_op", "name": "aten::ones", "pid": 4711, "tid": 1, "ts": origin, "dur": 1.5}
    return {"schemaVersion": 1, "traceEvents": [first, *(events[i] for i in g.permutation(len(events)))]}


def cells(trace, wanted):
    """A row of cells, CELL to a microsecond: how many of the wanted spans cover it."""
    spans, length = placed(trace, wanted)
    row = np.zeros(length, dtype=int)
    for begin, end in spans:
        row[begin:end] += 1
    return row


def placed(trace, wanted):
    """The wanted spans as (first cell, one past the last), in the order of their begins; and the length of a row."""
    every = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    zero = min(e["ts"] for e in every)
    spans = [(int((e["ts"] - zero) * CELL), int((e["ts"] + e["dur"] - zero) * CELL), wanted(e)) for e in every]
    return sorted((begin, end) for begin, end, mine in spans if mine), max(end for _, end, _ in spans)


def kernel(e):
    return e.get("cat") == "kernel"


def nccl(e):
    return e["name"].startswith(NCCL)


def cut_short(trace, wanted):
    """As `cells`, by whoever joins spans in the order of their begins and ends the joined one where the last span
    ends: one inside another cuts it short."""
    spans, length = placed(trace, wanted)
    joined: list[list[int]] = []
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = end
        else:
            joined.append([begin, end])
    row = np.zeros(length, dtype=int)
    for begin, end in joined:
        row[begin:end] = 1
    return row


def switched(trace, wanted):
    """As `cells`, by whoever keeps a flag and no count: the first kernel that ends switches it off."""
    spans, length = placed(trace, wanted)
    row, since = np.zeros(length, dtype=int), None
    for at, begins in sorted([(begin, True) for begin, _ in spans] + [(end, False) for _, end in spans]):
        row[since if since is not None else at : at] = 1
        since = at if begins else None
    return row


def kernels_of(trace, row=cells):
    """Rows of the communicating kernels, and of the computing ones."""
    return row(trace, lambda e: kernel(e) and nccl(e)), row(trace, lambda e: kernel(e) and not nccl(e))


def otherwise_read(trace):
    """{mistake: its rows of what communicates and of what computes}."""
    timed = [e for e in trace["traceEvents"] if "dur" in e]
    lengths = [{**e, "ts": int(e["ts"]), "dur": int(e["dur"])} for e in timed]
    ends = [{**e, "ts": int(e["ts"]), "dur": int(e["ts"] + e["dur"]) - int(e["ts"])} for e in timed]
    comm, work = kernels_of(trace)
    return {
        "a kernel inside a longer one ends the union too early: take the later of the two ends": kernels_of(
            trace, cut_short
        ),
        "a flag in place of a count: the first kernel that ends switches it off": kernels_of(trace, switched),
        "times are cut to whole microseconds": kernels_of({"traceEvents": lengths}),
        "begins and ends are cut to whole microseconds": kernels_of({"traceEvents": ends}),
        "whatever has nccl in its name communicates: a kernel that computes may have it, too": tuple(
            cells(trace, lambda e, is_comm=is_comm: kernel(e) and ("nccl" in e["name"]) == is_comm)
            for is_comm in (True, False)
        ),
        'what is no span counts: only "ph": "X" ran': kernels_of({"traceEvents": [{**e, "ph": "X"} for e in timed]}),
        "labels over other events count as computing": (
            comm,
            work + cells(trace, lambda e: e.get("cat") == "gpu_user_annotation"),
        ),
    }


def read(trace):
    """(computing, communication, exposed), and what mistakes would find for exposed."""
    comm, work = kernels_of(trace)
    copies = cells(trace, lambda e: e.get("cat", "").startswith("gpu_mem"))
    hosts = cells(trace, lambda e: "nccl" in e.get("name", "") and not (kernel(e) and not nccl(e)))
    newer = cells(trace, lambda e: kernel(e) and e["name"].startswith(NCCL[0]))
    right = int((work > 0).sum()), int((comm > 0).sum()), int(((comm > 0) & (work == 0)).sum())
    wrong = {
        "hidden communication is counted: what runs beside computing costs nothing": right[1],
        "lengths are summed where kernels overlap: a moment counts once": int((comm * (work == 0)).sum()),
        "copies count as computing: they hide nothing": int(((comm > 0) & (work == 0) & (copies == 0)).sum()),
        "a memset counts as computing: it hides nothing": int(
            ((comm > 0) & (work == 0) & (cells(trace, lambda e: e.get("cat") == "gpu_memset") == 0)).sum()
        ),
        "copies count as communication": int((((comm > 0) | (copies > 0)) & (work == 0)).sum()),
        "what the host asked for, or a label, counts as communication: only kernels do": int(
            ((hosts > 0) & (work == 0)).sum()
        ),
        **{cause: int(((a > 0) & (b == 0)).sum()) for cause, (a, b) in otherwise_read(trace).items()},
        "kernels of older NCCL, called ncclKernel_..., count as computing": int(
            (
                (newer > 0) & (work == 0) & (cells(trace, lambda e: kernel(e) and e["name"].startswith(NCCL[1])) == 0)
            ).sum()
        ),
    }
    if right[1] > right[0]:  # else many a mistake finds 0
        wrong["the difference of two lengths: it says nothing on what ran when"] = right[1] - right[0]
    return in_us(*right), {cause: n / CELL for cause, n in wrong.items()}, *in_us(comm.sum(), work.sum())


def in_us(*cells):
    return tuple(int(n) / CELL for n in cells)


@task("14.5", points=6)
def test_exposed(seed):
    """Exposed communication in three traces"""
    traces = [a_trace(seed + 1000 * i) for i in range(3)]
    for trace, got in zip(traces, _exposed(traces)):
        right, wrong, *_ = read(trace)
        same(field(got, "exposed"), right[2], tol=TINY, what="exposed (microseconds)", looks_like=wrong)
        same(
            field(got, "overlap"),
            1 - right[2] / right[1],
            tol=1e-9,
            what="overlap",
            looks_like={
                "the exposed share, expected the hidden one": right[2] / right[1],
                "communication is its exposed part alone: what is hidden is communication, too": 0.0,
            },
        )


@task("14.5", points=3)
def test_unions(seed):
    """The lengths of both unions"""
    traces = [a_trace(seed + 77 + 1000 * i) for i in range(2)]
    for trace, got in zip(traces, _exposed(traces)):
        right, _, comm, work = read(trace)
        for name, want, summed in (("computing", right[0], work), ("communication", right[1], comm)):
            looks_like = {"the sum of the kernels' lengths: a moment counts once": summed} | unions(trace, name)
            if name == "communication":
                looks_like["its exposed part alone: what is hidden is communication, too"] = right[2]
            same(field(got, name), want, tol=TINY, what=name, looks_like=looks_like)


def unions(trace, name):
    """What mistakes find for one of the unions."""
    which = name == "computing"
    return {cause: int((rows[which] > 0).sum()) / CELL for cause, rows in otherwise_read(trace).items()}


@task("14.5", points=1)
def test_nothing_to_expose(seed):
    """Without communication, without computing, and without anything"""
    empty = {"traceEvents": [{"ph": "M", "name": "process_name", "args": {}}]}
    for trace, got in zip([a_trace(seed, busy=False), empty], _exposed([a_trace(seed, busy=False), empty])):
        for name, want in (("communication", 0), ("exposed", 0), ("overlap", 1)):
            causes = {"nothing was sent, so nothing is exposed: all of it is hidden": 0} if name == "overlap" else {}
            causes |= unions(trace, name) if name == "communication" and trace is not empty else {}
            same(field(got, name), want, what=f"{name} of a trace without communication", looks_like=causes)
        if trace is not empty:
            causes = unions(trace, "computing")
            same(field(got, "computing"), read(trace)[0][0], tol=TINY, what="computing", looks_like=causes)
    trace = a_trace(seed)
    trace["traceEvents"] = [e for e in trace["traceEvents"] if not kernel(e) or nccl(e)]
    (got,) = _exposed([trace])
    right = read(trace)[0]
    for name, want in zip(("computing", "communication", "exposed", "overlap"), (0, right[1], right[1], 0)):
        same(field(got, name), want, tol=TINY, what=f"{name} of a trace without computing")


def _exposed(traces):
    got = call_alone("scenarios.exposed", traces)
    if not isinstance(got, list) or len(got) != len(traces):
        raise CheckFailed(NO_RESULT, "exposed gave no answers that can be read")
    return got
