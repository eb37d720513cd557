"""Honest variants of two blanks of week 13: what different people might write from the task text.

Five of each. `student(n, shift)` puts one of each together; two students of one shift have no variant in common. And
the disguises in which copies are handed in.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WEEK = ROOT / "week13_allreduce"

SCATTER = (
    """
    size, me = group.size, group.rank
    parts = list(x_L.tensor_split(size))
    nxt = me + 1 if me + 1 < size else 0
    prv = me - 1 if me > 0 else size - 1
    send_at = prv
    for _ in range(size - 1):
        recv_at = (send_at - 1) % size
        arrived = group.sendrecv(parts[send_at], dst=nxt, src=prv, like=parts[recv_at])
        combine_(parts[recv_at], arrived, op)
        send_at = recv_at
    return finish_(parts[me], op, size)
""",
    """
    n = group.size
    pieces = torch.tensor_split(x_L, n)
    if n > 1:
        for step in range(1, n):
            outgoing = pieces[(group.rank - step) % n]
            target = pieces[(group.rank - step - 1) % n]
            buffer = torch.empty_like(target)
            group.sendrecv(outgoing, dst=(group.rank + 1) % n, src=(group.rank + n - 1) % n, out=buffer)
            combine_(target, buffer, op)
    mine = pieces[group.rank]
    finish_(mine, op, n)
    return mine
""",
    """
    def piece(i):
        return x_L.tensor_split(group.size)[i % group.size]

    def neighbour(d):
        return (group.rank + d) % group.size

    hop = 0
    while hop < group.size - 1:
        got = group.sendrecv(
            piece(group.rank - 1 - hop), neighbour(+1), neighbour(-1), like=piece(group.rank - 2 - hop)
        )
        combine_(piece(group.rank - 2 - hop), got, op)
        hop += 1
    return finish_(piece(group.rank), op, group.size)
""",
    """
    world = group.size
    if world == 1:
        return finish_(x_L, op, 1)
    views = x_L.tensor_split(world)
    left = (group.rank - 1) % world
    right = (group.rank + 1) % world
    order = [(group.rank - 1 - i) % world for i in range(world)]
    for sending, receiving in zip(order, order[1:]):
        waiting = group.isend(views[sending], right)
        incoming = group.recv(left, like=views[receiving])
        waiting.wait()
        combine_(views[receiving], incoming, op)
    result = views[order[-1]]
    return finish_(result, op, world)
""",
    """
    R = group.size
    base, extra = divmod(x_L.numel(), R)
    starts = [i * base + min(i, extra) for i in range(R + 1)]
    block = lambda c: x_L[starts[c % R] : starts[c % R + 1]]
    for t in reversed(range(1, R)):
        c = group.rank + t
        combine_(block(c - 1), group.sendrecv(block(c), dst=(group.rank + 1) % R, src=(group.rank - 1) % R,
                                              like=block(c - 1)), op)
    return finish_(block(group.rank), op, R)
""",
)
TIMING = (
    """
    read = device_clock(group.device) if clock is None else clock
    bad = 0
    if check is not None:
        bad = check()
    for _ in range(warmup):
        run()
    group.barrier()
    start = read()
    for _ in range(iterations):
        run()
    stop = read()
    mean = torch.tensor((stop - start) / iterations, dtype=torch.float64, device=group.device)
    errors = torch.tensor(bad, device=group.device)
    group.all_reduce(mean, op="max")
    group.all_reduce(errors)
    return Timing(float(mean), int(errors))
""",
    """
    now = clock or device_clock(group.device)
    mistakes = torch.zeros(1, dtype=torch.long, device=group.device)
    if check:
        mistakes += check()
    group.all_reduce(mistakes, "sum")
    i = 0
    while i < warmup:
        run()
        i = i + 1
    group.barrier()
    t0 = now()
    i = 0
    while i < iterations:
        run()
        i = i + 1
    t1 = now()
    per_call = torch.full((1,), (t1 - t0) / iterations, dtype=torch.double, device=group.device)
    group.all_reduce(per_call, "max")
    return Timing(seconds=per_call[0].item(), wrong=mistakes[0].item())
""",
    """
    if clock is None:
        clock = device_clock(group.device)

    def repeat(times):
        for _ in range(times):
            run()

    def over_ranks(value, dtype, op):
        box = torch.tensor([value], dtype=dtype, device=group.device)
        group.all_reduce(box, op=op)
        return box.item()

    wrong = check() if check is not None else 0
    repeat(warmup)
    group.barrier()
    before = clock()
    repeat(iterations)
    after = clock()
    return Timing(
        over_ranks((after - before) / iterations, torch.float64, "max"), int(over_ranks(wrong, torch.int64, "sum"))
    )
""",
    """
    tick = clock if clock else device_clock(group.device)
    local_wrong = 0 if check is None else check()
    [run() for _ in range(warmup)]
    group.barrier()
    elapsed = -tick()
    [run() for _ in range(iterations)]
    elapsed += tick()
    both = torch.zeros(2, dtype=torch.float64, device=group.device)
    both[0] = elapsed / iterations
    both[1] = local_wrong
    slowest, total = both[:1].clone(), both[1:].clone()
    group.all_reduce(slowest, op="max")
    group.all_reduce(total, op="sum")
    return Timing(slowest.item(), round(total.item()))
""",
    """
    clock = clock or device_clock(group.device)
    count = check() if check else 0
    marks = []
    for n in range(warmup + iterations):
        if n == warmup:
            group.barrier()
            marks.append(clock())
        run()
    marks.append(clock())
    mine = (marks[1] - marks[0]) / iterations
    tensors = {}
    for name, value, kind, op in (("s", mine, torch.float64, "max"), ("w", count, torch.int64, "sum")):
        tensors[name] = torch.tensor([value], dtype=kind, device=group.device)
        group.all_reduce(tensors[name], op=op)
    return Timing(tensors["s"].item(), tensors["w"].item())
""",
)
HOLES = (("collectives.py", "13.2 ring reduce-scatter", SCATTER), ("timing.py", "13.5 time a collective", TIMING))
MANY = 5


def student(number: int, shift: int = 0) -> dict[str, bytes]:
    """A submission: variant number + shift * n of blank n. All else is as it was handed out."""
    from labkit.checks.markers import strip

    chosen = {title: variants[(number + shift * n) % MANY] for n, (_, title, variants) in enumerate(HOLES)}
    files = {}
    for name in ("collectives.py", "timing.py"):
        text = (WEEK / name).read_text(encoding="utf-8")
        for file, title, _ in HOLES:
            if file == name:
                text = filled(text, title, chosen[title])
        files[name] = strip(text, name).encode()
    return files


def filled(text: str, title: str, body: str) -> str:
    """The module with a blank filled by this body, without its markers."""
    begin = text.index(f"    ### BEGIN SOLUTION {title}\n")
    end = text.index("    ### END SOLUTION\n", begin)
    return text[:begin] + body.lstrip("\n") + text[end + len("    ### END SOLUTION\n") :]


# -- disguises --------------------------------------------------------------------------------------------------------
def renamed(files: dict[str, bytes]) -> dict[str, bytes]:
    """Every local name another one; comments and layout gone, as a formatter leaves them."""

    def other(text: str) -> str:
        tree = ast.parse(text)
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        local = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        for name in names:
            name.id += "_mine" * (name.id in local)
        return ast.unparse(tree)

    return {name: other(data.decode()).encode() for name, data in files.items()}


def padded(files: dict[str, bytes]) -> dict[str, bytes]:
    """Renamed, and in every function two statements that do nothing, first and last but one."""

    def other(text: str) -> str:
        tree = ast.parse(text)
        for function in tree.body:
            if isinstance(function, ast.FunctionDef) and len(function.body) > 3:
                function.body.insert(1, ast.parse("unused = [0]").body[0])
                function.body.insert(-1, ast.parse("assert len(unused) == 1").body[0])
        return ast.unparse(ast.fix_missing_locations(tree))

    return renamed({name: other(data.decode()).encode() for name, data in files.items()})


DISGUISES = {"as it was": dict, "renamed": renamed, "renamed and padded": padded}
