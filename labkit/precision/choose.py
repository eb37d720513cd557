"""Which linears of a model a backend takes, and how things are called when something is said about them."""

import fnmatch
from collections.abc import Iterable
from itertools import accumulate

from torch import nn

from labkit.errors import LabError
from labkit.strict import nearest


def choose_linears(model: nn.Module, skip: Iterable[str]) -> tuple[dict[str, nn.Linear], dict[str, str]]:
    """(linears to convert, {name: why not}) in the model's order. LabError: a pattern that names no module but "head"."""
    patterns = list(skip)
    names = [name for name, _ in model.named_modules() if name]
    for pattern in patterns:
        if pattern != "head" and not any(_names(pattern, name) for name in names):
            known = dict.fromkeys(part for name in names for part in (name, name.rpartition(".")[2]))
            raise LabError(
                f"the skip list names '{pattern}', but the model has no such module{nearest(pattern, known)}"
            )
    wanted, skipped = {}, {}
    for name, module in model.named_modules():
        stays = getattr(module, "stays", None)  # a part of the model that multiplies, and says why it is left alone
        if not isinstance(module, nn.Linear) and stays is None:
            continue
        # "a", "a.b", "a.b.c": a skipped module skips everything below it.
        above = list(accumulate(name.split("."), "{}.{}".format))
        by = next((p for p in patterns if any(_names(p, one) for one in above)), None)
        if by is not None:
            skipped[name] = f"named by '{by}' in the skip list"
        elif stays is not None:
            skipped[name] = stays
        elif type(module) is not nn.Linear:
            skipped[name] = f"is a {type(module).__name__} already"
        else:
            wanted[name] = module
    return wanted, skipped


def check_dims(linears: dict[str, nn.Linear], multiple: int, who: str) -> None:
    """LabError naming every linear whose in or out features are no multiple."""
    bad = [
        f"{name} ({m.in_features} -> {m.out_features})"
        for name, m in linears.items()
        if m.in_features % multiple or m.out_features % multiple
    ]
    if bad:
        raise LabError(
            f"{who} needs in and out features that are multiples of {multiple}; these are not: "
            f"{', '.join(bad)}: change the model's dims or add them to [precision] skip"
        )


def type_name(module: nn.Module) -> str:
    """The module's type. A module that was sharded alone counts as what it was: FSDP2 puts a subclass in its place."""
    from torch.distributed.fsdp import FSDPModule

    kind = next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule))
    return f"{kind.__module__}.{kind.__qualname__}"


def is_linear(module: nn.Module) -> bool:
    """Anything that maps in_features to out_features with a weight: nn.Linear, te.Linear, a student's."""
    return hasattr(module, "in_features") and hasattr(module, "out_features")


def _names(pattern: str, name: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or name.endswith("." + pattern)
