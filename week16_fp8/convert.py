"""From nn.Linear to FP8: the conversion of a model, and the step that trains it (task 16.6).

This is what "turn on FP8" means in a training script, and where it silently goes wrong. Four things are yours:

**Which linears.** Not all of them may, and not all of them should:

    shape        FP8 tensor cores take dimensions that divide by 16 (blocks: by 128). A linear that does not fit stays.
    head         its output are logits over the vocabulary, and the loss takes exponentials of them. It stays in BF16
                 in every published recipe (DeepSeek-V3, section 3.3.1), and so do embeddings and norms, which are no
                 linears and are never touched.
    router       of a mixture of experts: it chooses, and a rounding that flips the choice is no small error.
    shared       a weight that another module holds too (a head tied to the embedding). Replaced, it would be two
                 weights from then on, trained apart.

**The weights.** A fresh te.Linear, or a fresh FP8Linear, holds fresh random weights. Whoever forgets to copy them
trains another model, and compares the losses of two models. What would show it in the first step?

**Autocast.** Transformer Engine's `te.autocast` (and torch's) says how a forward is computed, and with delayed scaling
leaving it is what ends a forward: the scales are updated then. The backward follows what the forward saved. So which
of a step's lines belong inside, and how many contexts has a step of several micro-batches?

**Say what happened.** A log line "FP8 enabled" proves nothing: count. A skip list with a spelling mistake converts what
it should have left, and nobody notices; so a name that means no module is an error.

In which order do you build the model, load its weights, convert it, shard it and make the optimizer? Several orders raise
no error and train parameters that no forward uses: find two of them. given/fsdp.py has an order that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Report(NamedTuple):
    """What `convert` did. Names are those of `model.named_modules()`, in its order."""

    converted: list[str]
    skipped: dict[str, str]  # name: "named", "shape" or "shared"; the first that holds, in this order


def freeze_norms(model: nn.Module) -> list[str]:
    """Take the gradient from all LayerNorms' parameters; returns their names: the worked example of walking a model."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            module.requires_grad_(False)
            found.append(name)
    return found


def convert(
    model: nn.Module, make: Callable[..., nn.Module], *, skip: Sequence[str] = ("head", "router"), multiple: int = 16
) -> Report:
    """Task 16.6. Replace the linears of `model`, in place, by what `make` makes.

    Args:
        make: called as make(in_features, out_features, bias=True or False); it returns a module with
            `weight` [out, in] and `bias` [out] or None, with values of its own. (te.Linear and FP8Linear are such.) In
            the model it has the mode of the linear that it replaces, training or eval.
        skip: names of modules that stay as they are, with all that is below them: "head" is any module whose last name
            is head, "layers.0" the one called so or ending in ".layers.0".
        multiple: in and out features must divide by it.

    Returns:
        Report. Every nn.Linear of the model, of a subclass too, is in it, once.

    Raises:
        ValueError: an entry of skip names no module of the model, or nothing is left to convert.
    """
    ### BEGIN SOLUTION 16.6 convert a model
    modules = dict(model.named_modules())
    for wanted in skip:
        if not any(_means(wanted, name) for name in modules):
            raise ValueError(f"skip names {wanted!r}, and no module of the model is called so")
    holders: dict[int, int] = {}
    for module in modules.values():
        for parameter in module.parameters(recurse=False):
            holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    report = Report([], {})
    for name, old in modules.items():
        if not isinstance(old, nn.Linear):
            continue
        pieces = name.split(".")
        above = [".".join(pieces[:depth]) for depth in range(1, len(pieces) + 1)]  # the module and all around it
        if any(_means(wanted, place) for wanted in skip for place in above):
            report.skipped[name] = "named"
        elif old.in_features % multiple or old.out_features % multiple:
            report.skipped[name] = "shape"
        elif holders[id(old.weight)] > 1:
            report.skipped[name] = "shared"
        else:
            report.converted.append(name)
    if not report.converted:
        raise ValueError(f"nothing to convert: {len(report.skipped)} linears, all of them skipped")
    for name in report.converted:
        old = modules[name]
        new: Any = make(old.in_features, old.out_features, bias=old.bias is not None)
        with torch.no_grad():
            new.weight.copy_(old.weight)  # [out, in]: both ways round the same
            if old.bias is not None:
                new.bias.copy_(old.bias)
        around, _, last = name.rpartition(".")
        setattr(modules[around], last, new.train(old.training))
    return report
    ### END SOLUTION


def _means(wanted: str, name: str) -> bool:
    """Whether an entry of skip means the module of this name (given)."""
    return name == wanted or name.endswith("." + wanted)


def gradients_of(
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    autocast: Callable[[], AbstractContextManager[Any]],
) -> float:
    """Task 16.6. The gradients of one step of several micro-batches, added to the parameters' `grad`.

    The step's loss is the mean over the micro-batches of loss(model(x), y), computed from the output as float32. What
    belongs inside `autocast()`, and how often it is entered, follows from the top of this file.

    Returns:
        The step's loss.
    """
    ### BEGIN SOLUTION 16.6 place autocast
    total = 0.0
    for x, y in batches:
        with autocast():
            out = model(x)
        part = loss(out.float(), y) / len(batches)  # outside: the loss is FP32
        part.backward()  # outside: what the forward saved says how
        total += part.item()
    return total
    ### END SOLUTION
