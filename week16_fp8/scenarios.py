"""Drives your functions and classes where one call is not enough, for the checks. It holds no expected value.

It runs where your code runs; what it returns is judged elsewhere.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.checks.held import reached

# Each scenario imports the one module it drives: a file that is broken must not stop the checks of another.


def delay(amax_ST, group, fmt, length, algorithm, margin, alone=False):
    """16.3: S updates with the rows of amax_ST. Returns the scales before each update and after the last [S + 1, T],
    the history, and the amaxes as they are afterwards."""

    from . import delayed

    scaler = delayed.DelayedScaling(amax_ST.shape[1], fmt, length=length, algorithm=algorithm, margin=margin)
    other = delayed.DelayedScaling(amax_ST.shape[1], fmt, length=length)
    other.update(torch.full(amax_ST.shape[1:], 2.0**20))  # its state is its own
    scales = [scaler.scale_T.clone()]
    for amax_T in amax_ST:
        scaler.update(amax_T, None if alone else group)
        scales.append(scaler.scale_T.clone())
    return torch.stack(scales), scaler.history_HT, amax_ST


class Watch(TorchFunctionMode):
    """Notes every look at a tensor's values from Python, inside it."""

    CASTS = ("__array__", "__bool__", "__dlpack__", "__float__", "__format__", "__index__", "__int__", "__repr__")
    LOOKS = ("item", "tolist", "numpy", "cpu", "data_ptr", "storage", "untyped_storage", *CASTS)
    # What vmap says of any other way: within it a tensor has no values of its own.
    REFUSED = ("data pointer", "access storage", ".item()", "data-dependent", "aten::equal", "allclose")

    def __init__(self):
        super().__init__()
        self.looked = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in self.LOOKS:
            self.looked.append(f"{name}()")
        return function(*args, **(kwargs or {}))


def scale_unseen(amax, fmt, epsilon, power_of_two):
    """16.4: the scales, and by which methods the values were looked at."""
    from . import casts

    with Watch() as watch:
        scale = casts.scale_of(amax, fmt, epsilon=epsilon, power_of_two=power_of_two)
        casts.scale_of(amax.reshape(-1)[0], fmt, epsilon=epsilon, power_of_two=power_of_two)  # one number alone
    try:
        torch.vmap(lambda one: casts.scale_of(one, fmt, epsilon=epsilon, power_of_two=power_of_two))(amax)
    except RuntimeError as error:
        watch.looked += [f"what needs values ({error})"] * any(word in str(error) for word in Watch.REFUSED)
    return scale, watch.looked


def reordered(x):
    """x, stored along its columns: who writes to it is seen all the same."""
    x.data = x.transpose(0, -1).contiguous().transpose(0, -1)
    return x


def blocks_of(x, square, **options):
    """16.4: the scales of x's blocks; x in another order in memory."""
    from . import blockwise

    return blockwise.block_scales(reordered(x), square, **options)


def block_product(x, w, dy, epsilon=None, power_of_two=True):
    """16.4: y and the two gradients."""
    from . import blockwise, casts

    recipe = casts.Recipe(backward="e4m3", blocks=True, power_of_two=power_of_two, epsilon=epsilon or {})
    x, w = x.requires_grad_(), w.requires_grad_()
    y = blockwise.BlockProduct.apply(x, w, recipe)
    y.backward(dy)
    return y.detach(), x.grad, w.grad


def block_kept(x, w, dy, needs):
    """16.4: the gradients that the backward gives, and the bytes that are kept for it."""
    from . import blockwise

    x, w = x.requires_grad_(needs[0]), w.requires_grad_(needs[1])
    return _given_and_kept(blockwise.BlockProduct.apply(x, w), dy, w)


def linear_kept(x, w, dy, needs):
    """16.5: likewise."""
    from . import casts, linear

    w8, s_w = linear.rounding(w, "weight", casts.HYBRID)
    x, w = x.requires_grad_(needs[0]), w.requires_grad_(needs[1])
    return _given_and_kept(linear.FP8Product.apply(x, w, w8, s_w, casts.HYBRID), dy, w)


def mx_product(x, w, dy, rule):
    """16.11: y and the two gradients."""
    from .stretch import mxfp8

    x, w = x.requires_grad_(), w.requires_grad_()
    y = mxfp8.MXProduct.apply(x, w, rule)
    y.backward(dy)
    return y.detach(), x.grad, w.grad


def mx_kept(x, w, dy, needs):
    """16.11: as `block_kept`."""
    from .stretch import mxfp8

    x, w = x.requires_grad_(needs[0]), w.requires_grad_(needs[1])
    return _given_and_kept(mxfp8.MXProduct.apply(x, w), dy)


def nv_there(x, square, u):
    """16.12: x in NVFP4, with these numbers for noise; the dtype and shape of each tensor that noise was called with."""
    from .stretch import nvfp4

    noises = []

    def noise(y):
        noises.append(f"{y.dtype} {list(y.shape)}")
        return u

    return nvfp4.to_nvfp4(x, square, None if u is None else noise), noises


def nv_transformed(x, signs):
    """16.12: x transformed; x without signs; the name of the error for one column less."""
    from .stretch import nvfp4

    try:
        nvfp4.transformed(x[:, 1:].contiguous(), signs)
        error = "no error"
    except NotImplementedError:
        raise
    except Exception as raised:
        error = type(raised).__name__
    return nvfp4.transformed(x, signs), nvfp4.transformed(x, None), error


def nv_product(x, w, dy, square, signs, *noise):
    """16.12: y and the two gradients; noise by shape."""
    from .stretch import nvfp4

    known = {tuple(u.shape): u for u in noise if u is not None}

    def drawn(t):
        if tuple(t.shape) not in known:
            raise ValueError(f"noise for {list(t.shape)}: dy alone, and dy turned for dw, is rounded stochastically")
        return known[tuple(t.shape)]

    tricks = nvfp4.Tricks(square, drawn if known else None, signs)
    x, w = x.requires_grad_(), w.requires_grad_()
    y = nvfp4.NVFP4Product.apply(x, w, tricks)
    y.backward(dy)
    return y.detach(), x.grad, w.grad


def nv_kept(x, w, dy, needs):
    """16.12: as `block_kept`."""
    from .stretch import nvfp4

    x, w = x.requires_grad_(needs[0]), w.requires_grad_(needs[1])
    return _given_and_kept(nvfp4.NVFP4Product.apply(x, w, nvfp4.Tricks()), dy)


def _given_and_kept(y, dy, master=None):
    """The gradients of x and w that the backward gives; the bytes of all memory that its node reaches, `master`'s apart."""
    found = (*y.grad_fn.saved_tensors, *reached(y.grad_fn, package=__package__))
    stores = [one.untyped_storage() for one in found if one is not None]
    memory = {store.data_ptr(): store.nbytes() for store in stores}
    if master is not None:
        memory.pop(master.untyped_storage().data_ptr(), None)
    with torch.no_grad():
        given = y.grad_fn.apply(dy)  # the student's own backward: autograd would drop what nobody wants
    return list(given[:2]), sum(memory.values())


def one_rounding(x, slot, forward, backward, power_of_two, epsilon):
    """16.5: what `rounding` gives."""
    from . import casts, linear

    recipe = casts.Recipe(forward, backward, power_of_two=power_of_two, epsilon=epsilon)
    return linear.rounding(x, slot, recipe)


def linear_step(x, w, bias, dy, needs_input=True, training=True, **recipe):
    """16.5: forward and backward of an FP8Linear with these weights: y and the gradients of x, weight and bias. Not
    training: all of it in eval mode, and y from a forward without a graph."""
    from . import casts, linear

    module = _linear(linear, w, bias, casts.Recipe(**recipe))
    module.train(training)
    x = x.requires_grad_(needs_input)
    y = module(x)
    y.backward(dy)
    if not training:
        with torch.no_grad():
            y = module(x)
    return y.detach(), x.grad, module.weight.grad, module.bias.grad if bias is not None else None


class Roundings(TorchFunctionMode):
    """Counts what becomes FP8 of wider numbers inside it and has this shape, or is of it turned."""

    def __init__(self, shape):
        super().__init__()
        self.shapes, self.count = (shape, shape[::-1]), 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        floats = [one for one in (found, *args) if isinstance(one, torch.Tensor) and one.is_floating_point()]
        made = floats and floats[0] is found and found.itemsize == 1 and found.shape in self.shapes
        self.count += bool(made) and any(one.itemsize > 1 for one in floats)
        return found


def micro_batches(x, weights, flags, dy):
    """16.5: one forward and backward for each weight and flag, in turn: before each the weight is overwritten. Returns
    all outputs, all gradients of x, the weight's, whether a backward came to a graph that was used up, and how often
    each forward rounded a weight."""
    from . import casts, linear

    module = _linear(linear, weights[0], None, casts.HYBRID)
    outputs, gradients, anew = [], [], []
    for w, flag in zip(weights, flags):
        module.weight.data.copy_(w)  # as a sharded model's all-gather does: autograd counts no new version
        own = x.clone().requires_grad_()
        with Roundings(w.shape) as roundings:
            y = module(own, is_first_microbatch=flag)
        anew.append(roundings.count)
        try:
            y.backward(dy)
        except RuntimeError as error:
            if "backward through the graph a second time" not in str(error):
                raise
            return None, None, None, True, []
        outputs.append(y.detach())
        gradients.append(own.grad)
    return torch.stack(outputs), torch.stack(gradients), module.weight.grad, False, anew


def taken_too_early(x, w):
    """16.5: is_first_microbatch=False on a fresh module. The name of the error, or "none"."""
    from . import casts, linear

    module = _linear(linear, w, None, casts.HYBRID)
    try:
        module(x, is_first_microbatch=False)
    except NotImplementedError:
        raise
    except Exception as error:
        return type(error).__name__
    return "none"


def _linear(linear, w, bias, recipe):
    module = linear.FP8Linear(w.shape[1], w.shape[0], bias=bias is not None, recipe=recipe)
    with torch.no_grad():
        module.weight.copy_(w)
        if bias is not None:
            module.bias.copy_(bias)
    return module


class Fresh(nn.Linear):
    """What `make` makes in a check: a linear of another type, whose weights are all 7 until somebody copies."""

    def __init__(self, in_features, out_features, bias=True):
        super().__init__(in_features, out_features, bias=bias)
        for parameter in self.parameters():
            nn.init.constant_(parameter, 7.0)
        self.register_buffer("amax", torch.zeros(()))  # a module of FP8 has more than weight and bias
        self.inner = nn.Identity()


class Linear(nn.Linear):
    """One of a subclass."""


def build(weights, biases, tied, evaluated):
    """A model of the weights {dotted name: [out, in]}: linears (with the biases that there are), an embedding "embed"
    that shares its weight with the first linear of `tied`, two more of `tied` that share theirs, and a norm. `evaluated`
    names modules in eval mode."""
    model = nn.Module()
    for name, w in weights.items():
        here = model
        *above, last = name.split(".")
        for part in above:
            if not hasattr(here, part):
                setattr(here, part, nn.Module())
            here = getattr(here, part)
        new = (Linear if last == "tall" else nn.Linear)(w.shape[1], w.shape[0], bias=name in biases)
        with torch.no_grad():
            new.weight.copy_(w)
            if name in biases:
                new.bias.copy_(biases[name])
        setattr(here, last, new)
    embedded, one, other = tied
    model.get_submodule(other).weight = model.get_submodule(one).weight
    model.norm = nn.LayerNorm(8)
    model.embed = nn.Embedding(*weights[embedded].shape)
    model.embed.weight = model.get_submodule(embedded).weight  # type: ignore[assignment]  # nn.Module's attributes
    for name in evaluated:
        model.get_submodule(name).eval()
    return model


def converted(weights, biases, tied, evaluated, skip, multiple):
    """16.6: the report, and of each linear afterwards its type, weight, bias and mode; whether the ties still hold."""
    from . import convert

    model = build(weights, biases, tied, evaluated)
    made = []

    def make(in_features, out_features, bias=True):
        made.append((in_features, out_features, bias))
        return Fresh(in_features, out_features, bias=bias)

    report = convert.convert(model, make, skip=skip, multiple=multiple)
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            bias = module.bias.detach() if module.bias is not None else None
            modes = {one.training for one in module.modules()}
            found[name] = (
                type(module).__name__,
                module.weight.detach(),
                bias,
                modes.pop() if len(modes) == 1 else None,
            )
    embedded, *pair = (model.get_submodule(name).weight for name in tied)
    still = model.embed.weight is embedded and pair[0] is pair[1]
    return list(report.converted), dict(report.skipped), found, made, still


def refused(weights, tied, skip, multiple):
    """16.6: the name of the error that convert raises, or "none"; how many linears were replaced all the same; and what
    a block's linear and the head are after a second try, with a list that is right."""
    from . import convert

    model = build(weights, {}, tied, ())
    error = "none"
    try:
        convert.convert(model, Fresh, skip=skip, multiple=multiple)
    except NotImplementedError:
        raise
    except Exception as raised:
        error = type(raised).__name__
    replaced = sum(isinstance(module, Fresh) for module in model.modules())
    convert.convert(model, Fresh, skip=["head"], multiple=16)
    return error, replaced, [type(model.get_submodule(name)).__name__ for name in ("layers.0.attn.wq", "head")]


def micro_batched(xs, ys, w, before, low, inside):
    """16.6: gradients_of on a model that notes what runs inside the context, where forward, loss and backward are
    `inside` times as large. before: what its weight's grad holds. `low`: its output is BF16. Returns the loss, the
    gradient, and the log: (what, how many contexts are open)."""

    from . import convert

    log, open_ = [], 0

    @contextmanager
    def autocast():
        nonlocal open_
        log.append(("enter", open_))
        open_ += 1
        try:
            yield
        finally:
            open_ -= 1

    def here(what, number, x):
        log.append((what, open_))
        return x * inside[number] if open_ else x

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(w.clone())

        def forward(self, x):
            y = here("forward", 0, x @ self.weight.t())
            y = y.bfloat16() if low else y
            y.register_hook(lambda dy: here("backward", 2, dy))
            return y

    def loss(out, y):
        return here("loss in " + str(out.dtype).removeprefix("torch."), 1, (out - y).square().mean())

    model = Model()
    model.weight.grad = before.clone()
    value = convert.gradients_of(model, list(zip(xs, ys)), loss, autocast)
    return value, model.weight.grad, log


class WithoutGradScaler(TorchDispatchMode):
    """Inside it, in this thread, torch's own next scale is refused: it is what 16.7 asks for."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # or torch imports its compiler, 800 modules, at the first operation

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket is torch.ops.aten._amp_update_scale_:
            raise RuntimeError("torch's GradScaler (_amp_update_scale_) is what 16.7 asks for: it is yours to write")
        return function(*args, **(kwargs or {}))


def scaled_steps(gradients, group, scale, growth, backoff, interval, alone=False):
    """16.7: for each step's gradients (of a loss that was scaled) unscale and update. Returns the answers, the
    gradients afterwards, and the scale and the count of good steps after each step."""

    from . import loss_scaling

    finite, scales, counts = [], [], []
    with WithoutGradScaler():
        scaler = loss_scaling.LossScaler(scale, growth, backoff, interval)
        for step in gradients:
            good = scaler.unscale_(step, None if alone else group)
            scaler.update(good)
            finite.append(float(good))
            scales.append(float(scaler.scale))
            counts.append(scaler.good)
    return finite, gradients, scales, counts


def recovered(losses, finite, saves, lower_after, rollback_after, factor):
    """16.7: `after` for each step; a checkpoint after the steps in `saves`. Returns actions, rates, and the log."""
    from . import loss_scaling

    recovery = loss_scaling.Recovery(lower_after, rollback_after, factor)
    actions, rates = [], []
    for step, (loss, good) in enumerate(zip(losses, finite)):
        actions.append(recovery.after(step, loss, bool(good)))
        rates.append(float(recovery.rate))
        if step in saves:
            recovery.saved(step)
    return actions, rates, [tuple(event) for event in recovery.log]


def measured(tensors, scales, fmt):
    """16.8: `measure` of each tensor."""
    from . import scale_tracker

    return [scale_tracker.measure(reordered(x), s, fmt) for x, s in zip(tensors, scales)]


def raised(runs, number, T, group):
    """16.8: the first step at which a fresh Alarm rings in each of so many runs, or -1.

    Rank 1 has the runs (scale, amax, overflow, underflow: [S, T]) and none of your code. Rank 0 has the alarms: it is
    sent a step of all runs when it has answered for the step before, so what comes later is not in its process."""
    if group.rank == 0:
        from . import scale_tracker

        alarms: list = []
        rang_N = torch.zeros(number)
        while True:
            rows_N5T = group.recv(1, like=torch.zeros(number, 5, T))
            going = rows_N5T[:, 4, 0].nonzero().flatten().tolist()
            if not going:
                return None
            alarms = alarms or [scale_tracker.Alarm() for _ in range(number)]
            for n in going:
                rang_N[n] = float(bool(alarms[n].see(*rows_N5T[n, :4].clone())))
            group.send(rang_N, 1)
    found, step = [-1] * number, 0
    while True:
        rows_N5T = torch.zeros(number, 5, T)
        going = [n for n, run in enumerate(runs) if found[n] < 0 and step < len(run[0])]
        for n in going:
            rows_N5T[n, :4], rows_N5T[n, 4] = torch.stack([row[step] for row in runs[n]]), 1.0
        group.send(rows_N5T, 0)
        if not going:
            return found
        rang_N = group.recv(0, like=torch.zeros(number))
        for n in going:
            found[n] = step if rang_N[n] else -1
        step += 1


class Products(TorchDispatchMode):
    """Every matrix product that runs inside: its operator, both operands' (dtype, shape, strides), the result's dtype,
    and `use_fast_accum`."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in ("_scaled_mm", "_scaled_mm_v2", "mm", "addmm", "bmm", "baddbmm", "_int_mm"):
            a, b = [one for one in args if isinstance(one, torch.Tensor) and one.dim() > 1][
                -2 if "add" in name else 0 :
            ][:2]
            fast = kwargs.get("use_fast_accum", len(args) > 7 and args[7])
            self.seen.append([name, _lies(a), _lies(b), str(found.dtype), bool(fast)])
        return found


def _lies(x):
    return str(x.dtype), tuple(x.shape), x.stride()


def turned(x, order, slot, forward, backward, power_of_two, epsilon):
    """16.10: what `both_ways` gives for x, stored along its columns if `order`: both copies as (dtype, strides, codes), the
    inverse scale, and by which methods values were looked at."""
    from . import casts
    from .stretch import tensor_cores

    recipe = casts.Recipe(forward, backward, power_of_two=power_of_two, epsilon=epsilon)
    with Watch() as watch:
        *copies, inverse = tensor_cores.both_ways(x.t().contiguous().t() if order else x, slot, recipe)
    there = [(str(one.dtype), one.stride(), one.contiguous().view(torch.uint8)) for one in copies]
    return there, inverse, watch.looked


def one_product(a, b, fmt_a, fmt_b, inverse_a, inverse_b, dtype, fast):
    """16.10: `product` of these codes (uint8). The result and the products seen, or the name of the error."""
    from . import casts
    from .stretch import tensor_cores

    a, b, dtype = a.view(casts.DTYPES[fmt_a]), b.view(casts.DTYPES[fmt_b]), getattr(torch, dtype)
    try:
        with Products() as products:
            got = tensor_cores.product(a, b, inverse_a, inverse_b, dtype=dtype, fast=fast)
    except NotImplementedError:
        raise
    except (ValueError, RuntimeError) as error:
        return type(error).__name__, []
    return got, products.seen


def on_tensor_cores(x, w, dy, turned=False, needs_weight=True, **recipe):
    """16.10: forward and backward of `TensorCoreProduct`, after a forward of another w in the same memory: y, dx, dw,
    and the products seen in each direction; or the name of the error, and whether it came in the forward."""
    from . import casts
    from .stretch import tensor_cores

    multiply, rules = tensor_cores.TensorCoreProduct.apply, casts.Recipe(**recipe)
    dy, there, back = dy.t().contiguous().t() if turned else dy, Products(), Products()
    try:
        w.mul_(2)
        try:
            multiply(x, w, rules)
        finally:
            w.div_(2)
        with there:
            y = multiply(x.requires_grad_(), w.requires_grad_(needs_weight), rules)
        with back:
            y.backward(dy)
    except NotImplementedError:
        raise
    except (ValueError, RuntimeError) as error:
        return type(error).__name__, not back.seen
    return y.detach(), x.grad, w.grad, there.seen, back.seen


def tensor_cores_kept(x, w, dy, needs):
    """16.10: as `linear_kept`; and the bytes of the codes of x and w."""
    from . import casts
    from .stretch import tensor_cores

    x, w = x.requires_grad_(needs[0]), w.requires_grad_(needs[1])
    return _given_and_kept(tensor_cores.TensorCoreProduct.apply(x, w, casts.HYBRID), dy, w)
