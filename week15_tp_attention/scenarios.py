"""Drives your functions, forward and backward, for the test files. It holds no expected value.

It runs where your code runs; what it returns is judged in the tests, elsewhere. Barriers mark the phases in the
ledger. Each scenario imports the one module that it drives: a file that is broken must not stop the checks of
another."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.checks.held import reached


def driven(group, forward, dy, leaves, meanwhile=None, times=2, modules=(), later=()):
    """Run `forward`, then backward from `dy` (None: from a number), and all of it again, the numbers in order in memory.
    Returns y and what the second time added to the leaves' gradients, by name: none, if y has another shape than dy.

    meanwhile: another call, in a group of this rank alone, between forward and backward. "the first time" holds y and the
    gradients of that. modules: in evaluation mode then, and it is called "in evaluation". later: other numbers for leaves
    by name, the first for the second time, each further one for a forward "without gradients"."""
    alone = group.split([[r] for r in range(group.size)], "alone") if meanwhile else None
    dy = None if dy is None else reordered(dy)
    found: dict = {}
    group.barrier()
    for again in range(times):
        for module in modules:
            module.train(bool(again))
        old = renew(leaves, later[0]) if again and later else {}
        for t in (*leaves.values(), dy) if again else ():
            if t is not None:  # contiguous, and still the caller's: whoever writes to it is seen
                t.data, t.grad = t.data.contiguous(), t.grad if t.grad is None else t.grad.contiguous()
        before = {name: leaf.grad.clone() for name, leaf in leaves.items() if leaf.grad is not None}
        y = forward()
        if meanwhile:
            meanwhile(alone)
        group.barrier()
        if dy is None or y.shape == dy.shape:
            y.backward(dy)
        group.barrier()
        added = {name: t.grad if t.grad is None else t.grad - before.get(name, 0) for name, t in leaves.items()}
        earlier = {"in evaluation" if modules else "the first time": found} if again else {}
        found = {"y": y, **added, **earlier}
    found["without gradients"] = []
    for others in later[1:]:
        renew(leaves, others)
        with torch.no_grad():
            found["without gradients"].append(forward())
    renew(leaves, old)  # the caller's
    return found


def renew(leaves, others):
    """Write other numbers into leaves, as an optimizer does. Returns the old ones."""
    old = {name: leaves[name].detach().clone() for name in others}
    with torch.no_grad():
        for name, value in others.items():
            leaves[name].copy_(value)
    return old


def reordered(x):
    """x, its numbers in another order in memory: who writes to it is seen all the same."""
    backwards = tuple(range(x.dim())[::-1])
    x.data = x.permute(backwards).contiguous().permute(backwards)
    return x


def leaf(x):
    """x as a leaf, in the caller's memory: who writes to it is seen."""
    return x.requires_grad_()


def step(x, dy, group, which, **more):
    """15.1: one of the four steps. Also the bytes of memory that y keeps."""
    from . import linears

    x, function = leaf(reordered(x)), getattr(linears, which)
    more = {key: getattr(torch, value) if key == "dtype" else value for key, value in more.items()}
    result = driven(group, lambda: function(x, group, **more), dy, {"x": x}, lambda alone: function(x.detach(), alone))
    return {**result, "kept": result["y"].untyped_storage().nbytes()}


def linear(x, dy, weight, bias, later=(), *, group, kind, **options):
    """15.1: one of the two linears. A dtype comes by name."""
    from . import linears

    if "sum_dtype" in options:
        options["sum_dtype"] = getattr(torch, options["sum_dtype"])
    module = getattr(linears, f"{kind}ParallelLinear")(weight, bias, group, **options)
    x, leaves = leaf(reordered(x)), {"weight": module.weight}
    if bias is not None:
        leaves["bias"] = module.bias
    return driven(group, lambda: module(x), dy, {"x": x, **leaves}, modules=[module], later=later)


def two_linears(x, dy, w1, b1, w2, b2, group):
    """15.1: a feed-forward network, column-parallel and then row-parallel, with squares between."""
    from . import linears

    one, two = linears.ColumnParallelLinear(w1, b1, group), linears.RowParallelLinear(w2, b2, group)
    x = leaf(reordered(x))
    leaves = {"x": x, "w1": one.weight, "b1": one.bias, "w2": two.weight, "b2": two.bias}
    return driven(group, lambda: two(one(x).square()), dy, leaves)


def refusals(cases):
    """15.2: what `split_heads` raises for each (n_heads, n_kv_heads, N): the type's name and the text."""
    from . import attention

    raised = []
    for heads, kv, N in cases:
        try:
            raised.append(("nothing", str(attention.split_heads(heads, kv, N, 0))))
        except NotImplementedError:
            raise
        except Exception as error:
            raised.append((type(error).__name__, str(error)))
    return raised


def slices(weights, share, d_head):
    """15.2: one rank's slices, and the bytes of memory that each keeps."""
    from . import attention

    query, kv = share
    found = attention.slice_weights(weights, attention.Share(tuple(query), tuple(kv), []), d_head)
    return found, {name: t.untyped_storage().nbytes() for name, t in found.items()}


def attention_layer(x, dy, weights, later, cos, sin, group, n_heads, n_kv_heads):
    """15.2: the layer on this rank's slices."""
    from . import attention

    layer = attention.ParallelAttention(weights, group, n_heads, n_kv_heads)
    x = leaf(reordered(x))
    leaves = {"x": x, **{name: getattr(layer, name) for name in weights}}
    return driven(group, lambda: layer(x, cos, sin), dy, leaves, modules=[layer], later=later)


def scattered(x, dy, group):
    """15.3: from addends to positions."""
    from . import sequence

    x = leaf(reordered(x))
    return driven(group, lambda: sequence.scatter_positions(x, group), dy, {"x": x})


def gathered(x, dys, weights, group, keep):
    """15.3: one gather and several products. Also how many numbers were kept for backward beside the weights, wherever
    they are."""
    from . import sequence

    x, weights, dys = leaf(reordered(x)), [leaf(w) for w in weights], [reordered(dy) for dy in dys]
    alone = group.split([[r] for r in range(group.size)], "alone")
    group.barrier()
    ys, kept = kept_beside(weights, sequence, lambda: sequence.gather_linears(x, weights, group, keep), 4)
    sequence.gather_linears(2 * x.detach(), [w.detach() for w in weights], alone, keep)  # between the two
    group.barrier()
    torch.autograd.backward(list(ys), list(dys))
    group.barrier()
    return {"ys": list(ys), "x": x.grad, "weights": [w.grad for w in weights], "kept": sum(kept.values())}


def kept_beside(others, module, forward, size=None):
    """What `forward` gives, a tuple, and what it keeps for backward beside the `others`, wherever that is: numbers by
    memory, of `size` bytes each or of their own."""
    given, kept = {memory_of(t) for t in others}, dict[int, int]()

    def keeping(t):
        if memory_of(t) not in given:
            kept[memory_of(t)] = t.untyped_storage().nbytes() // (size or t.itemsize)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keeping, lambda t: t):
        ys = forward()
    nodes = [y.grad_fn for y in ys]
    for node in nodes:  # it grows
        nodes += [before for before, _ in getattr(node, "next_functions", ()) if before not in nodes]
    for tensor in reached(module, *nodes, package=__package__):
        keeping(tensor)  # what was put beside save_for_backward is kept, too
    return ys, kept


def memory_of(t):
    return t.untyped_storage().data_ptr()


def weighed(x, dys, weights, group, keep):
    """15.3: as `gathered`, of a large x; memory is read before and between, in grading. Returns the gradients of the
    weights. The last rank, which has no x, has the dys: whoever finds them earlier needs to keep no x for the backward."""
    part = [[*range(group.size - 1)]]
    if x is None:
        group.split(part)
        for r in part[0]:
            for dy in dys:
                group.send(dy, dst=r)
        return []
    for t in (x, *weights):
        t.requires_grad_()  # not copies: what came would lie there, large, for whoever needs room for a gathered x
    ready = [torch.nn.functional.linear(x, w) for w in weights]  # what torch sets up at the first is memory, too
    torch.autograd.backward(ready, [torch.zeros_like(y) for y in ready])
    del ready
    for t in (x, *weights):
        t.grad = None
    group.compute("inputs made", seconds=0)
    own = group.split(part)
    from . import sequence

    ys = sequence.gather_linears(x, weights, own, keep)
    group.compute("kept for backward", seconds=0)
    torch.autograd.backward(list(ys), [group.recv(group.size - 1, like=y) for y in ys])
    return [w.grad for w in weights]


def block(x, dy, weights, later, cos, sin, group, parts, d_head, **options):
    """15.3: a whole block on this rank's positions; the ranks of a part have equal key/value heads. Also how many
    numbers each forward keeps for backward beside the weights."""
    from . import sequence

    module = sequence.SequenceParallelBlock(weights, group, group.split(parts, "replicas"), d_head, **options)
    x = leaf(reordered(x))
    leaves, kept = {name: getattr(module, name) for name in weights}, []

    def forward():
        (y,), found = kept_beside(leaves.values(), (sequence, module), lambda: (module(x, cos, sin),), 4)
        kept.append(sum(found.values()))
        return y

    return {**driven(group, forward, dy, {"x": x, **leaves}, modules=[module], later=later), "kept": kept}


def embedding(tokens, weight, dy, group, V):
    """15.4."""
    from . import vocab

    weight, tokens = leaf(weight), reordered(tokens)
    return driven(group, lambda: vocab.parallel_embedding(tokens, weight, V, group), dy, {"weight": weight})


def loss(logits, targets, scale, group, V):
    """15.4: the loss from this rank's logits, and its gradient `scale` times."""
    from . import vocab

    logits, targets = leaf(reordered(logits)), reordered(targets)
    return driven(
        group, lambda: vocab.parallel_cross_entropy(logits, targets, V, group), torch.tensor(scale), {"logits": logits}
    )


def head(x, weight, targets, group, V):
    """15.4: the loss from the last norm's output."""
    from . import vocab

    x, weight, targets = leaf(reordered(x)), leaf(weight), reordered(targets)
    return driven(
        group, lambda: vocab.parallel_head_loss(x, weight, targets, V, group), None, {"x": x, "weight": weight}
    )


class Products(TorchDispatchMode):
    """Notes each matrix product: how many numbers came of it, and in which open span of the group it ran."""

    def __init__(self, group):
        super().__init__()
        self.group, self.seen, self.results = group, [], []

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # or torch imports its compiler, 800 modules, at the first product: a second for every rank

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket._qualified_op_name.split("::")[-1] in ("mm", "addmm", "bmm", "baddbmm"):
            last = self.group.ledger.events[-1]
            inside = last.label if last.kind == "compute" and last.end is None else ""
            self.seen.append((self.size(result, args), inside))
            self.results.append(result.detach().clone())
        return result

    def size(self, result, args):
        return result.numel()


class Work(Products):
    """Notes of each matrix product how many multiplications it takes, and the phase: barriers so far."""

    def size(self, result, args):
        barriers = sum(event.kind == "barrier" for event in self.group.ledger.events)
        return result.numel() * args[-2].shape[-1], barriers


def overlapped(x, dy, weight, group):
    """15.5: a column-parallel linear. Also the products, with the spans in which they ran."""
    from . import overlap

    x, weight, function = leaf(reordered(x)), leaf(weight), overlap.overlapped_column_linear
    leaves = {"x": x, "weight": weight}

    def meanwhile(alone):
        function((7 * x.detach()).requires_grad_(), weight, alone)

    with Products(group) as products:
        result = driven(group, lambda: function(x, weight.view_as(weight), group), dy, leaves, meanwhile, times=1)
    return {**result, "products": products.seen, "results": products.results}


def chunks(x, weight, group, in_order):
    """15.5: the product in chunks, of an x whose numbers lie in order in memory or not. Also the products, with the spans in which they ran."""
    from . import overlap

    with torch.no_grad(), Products(group) as products:
        y = overlap.gather_linear_in_chunks(x if in_order else reordered(x), weight, group)
    return {"y": y, "products": products.seen, "results": products.results}


def schedule(which, sizes):
    """15.6: a schedule for each (P, M), as the list of its stages' steps."""
    from . import pipeline

    return [[list(getattr(pipeline, which)(P, M, p)) for p in range(P)] for P, M in sizes]


def pipelined(weights, inputs, targets, layers, group, config, schedule, shape):
    """15.6: a stage of the decoder with these weights, run by `schedule` (steps of every stage). Returns the loss, the
    gradients by name, how many micro-batches the stage kept after each forward and before each backward, and whether the
    loss has a graph."""
    from labkit.model.config import ModelConfig
    from labkit.model.decoder import Transformer

    from . import pipeline

    stage = Transformer(ModelConfig(**config), layers=range(*layers))
    stage.load_state_dict(weights)
    steps = [tuple(one) for one in schedule[group.rank]]
    kept = keeps(stage)
    value = pipeline.run_schedule(stage, steps, inputs, targets, tuple(shape), group)
    graph = isinstance(value, torch.Tensor) and value.requires_grad
    return value, {name: p.grad for name, p in stage.named_parameters()}, kept, graph


def keeps(stage, inputs=1):
    """A list that gets a number at each forward of `stage` and each backward: of how many forwards the input or the
    output is still there, or without `inputs` the output."""
    made: list[list[weakref.ref]] = []
    found: list[int] = []

    def look(*_):
        found.append(sum(any(ref() is not None for ref in refs) for refs in made))

    def ran(module, args, y):
        made.append([weakref.ref(t) for t in (y, *args[:inputs]) if t.requires_grad])
        look()
        y.register_hook(look)

    stage.register_forward_hook(ran)
    return found


def interleaved(P, M, v):
    """15.8: every rank's steps."""
    from .stretch import interleaved

    return [interleaved.interleaved(P, M, v, p) for p in range(P)]


def interleaved_refuses(P, M, v):
    """15.8: what is raised: the type's name and the text."""
    try:
        return "nothing", str(interleaved(P, M, v))
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__, str(error)


def collective(x, dy, weight, group, which, **more):
    """15.9: one of the three, forward and backward."""
    from .stretch import collective_matmul

    x, weight = leaf(x), leaf(weight)
    function = getattr(collective_matmul, which)
    return driven(group, lambda: function(x, weight, group, **more), dy, {"x": x, "weight": weight}, times=1)


def zero_bubble(sizes):
    """15.10: the schedule for each (P, M), as the list of its stages' steps."""
    from .stretch import zero_bubble

    return [[list(zero_bubble.zero_bubble(P, M, p)) for p in range(P)] for P, M in sizes]


def zero_bubble_run(weights, inputs, targets, layers, group, config, schedule, shape):
    """15.10: as `pipelined`, with linears whose backward is apart. Also the products, with the spans in which they
    ran; and of how many micro-batches something is still there, at each F and B of the stage's output, at the end of
    each B of what was put aside."""
    from labkit.model.config import ModelConfig
    from labkit.model.decoder import Transformer

    from .stretch import zero_bubble

    aside: list[list[weakref.ref]] = [[]]
    waits: list[int] = []

    class Watched(zero_bubble.Left):
        def put(self, weight, x, dy):
            aside[-1].append(weakref.ref(dy))
            super().put(weight, x, dy)

        def take(self):
            waits.append(sum(any(ref() is not None for ref in refs) for refs in aside))
            aside.append([])
            return super().take()

    left = Watched()
    stage = Transformer(
        ModelConfig(**config), linear=lambda name, i, o: zero_bubble.Linear(i, o, left), layers=range(*layers)
    )
    stage.load_state_dict(weights)
    steps = [tuple(one) for one in schedule[group.rank]]
    kept = keeps(stage, inputs=0)  # what waits for a W has a graph, and that has its input
    with Products(group) as products:
        value = zero_bubble.run_schedule(stage, left, steps, inputs, targets, tuple(shape), group)
    return value, {name: p.grad for name, p in stage.named_parameters()}, products.seen, kept, waits


def zigzag(sizes):
    """15.11: every rank's pieces for each (T, N); of a refusal the type's name and the text."""
    from .stretch import ring_attention

    def pieces(T, N, r):
        try:
            return [list(piece) for piece in ring_attention.zigzag(T, N, r)]
        except NotImplementedError:
            raise
        except Exception as error:
            return type(error).__name__, str(error)

    return [[pieces(T, N, r) for r in range(N)] for T, N in sizes]


def ring(q, k, v, dO, group, pieces):
    """15.11: forward and backward, with these pieces by rank. Also the work: (multiplications, phase) and the span of
    each product; and how many numbers are kept for backward beside q, k, v and o."""
    from .stretch import ring_attention

    q, k, v = leaf(q), leaf(k), leaf(v)

    def positions(T, N, r):
        return [tuple(piece) for piece in pieces[r]]

    kept: dict[int, int] = {}

    def forward():
        (o,), found = kept_beside(
            (q, k, v), ring_attention, lambda: (ring_attention.ring_attention(q, k, v, positions, group),)
        )
        kept.update({memory: numbers for memory, numbers in found.items() if memory != memory_of(o)})
        return o

    with Work(group) as work:
        result = driven(group, forward, dO, {"q": q, "k": k, "v": v}, times=1)
    return {**result, "work": work.seen, "kept": sum(kept.values())}


def turned(x, dy, group, which):
    """15.12: one of the two turns."""
    from .stretch import ulysses

    x = leaf(x)
    return driven(group, lambda: getattr(ulysses, which)(x, group), dy, {"x": x})


def ulysses_layer(x, dy, weights, cos, sin, group, n_heads, n_kv_heads):
    """15.12: the layer on this rank's positions."""
    from .stretch import ulysses

    layer = ulysses.UlyssesAttention(weights, group, n_heads, n_kv_heads)
    x = leaf(x)
    return driven(group, lambda: layer(x, cos, sin), dy, {"x": x, **{name: getattr(layer, name) for name in weights}})


def ulysses_refuses(weights, group, n_heads, n_kv_heads):
    """15.12: what is raised: the type's name and the text."""
    from .stretch import ulysses

    try:
        ulysses.UlyssesAttention(weights, group, n_heads, n_kv_heads)
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def exchanged(x, to, come, dy, group):
    """15.13: the uneven all-to-all alone."""
    from .stretch import experts

    x = leaf(x)
    return driven(group, lambda: experts.Exchange.apply(x, list(to), list(come), group), dy, {"x": x})


def spread(x, chosen, gates, dy, up, down, group):
    """15.13: experts on all ranks."""
    from .stretch import experts

    x, gates, up, down = leaf(x), leaf(gates), leaf(up), leaf(down)
    leaves = {"x": x, "gates": gates, "up": up, "down": down}
    return driven(group, lambda: experts.spread_experts(x, chosen, gates, up, down, group), dy, leaves)
