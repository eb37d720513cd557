"""Seam (e): what a precision backend is, and what all backends do the same way.

A backend replaces the linears of a model by linears that compute in another format, keeps the weights as they are, and
can say afterwards what it did:

    backend = get_backend("torchao")
    report = backend.convert(model, "tensorwise", skip=["head"])     # which linears, into what; which not, and why
    with backend.autocast():                                         # around the forward pass only
        loss = model(tokens, targets)
    loss.backward()                                                  # outside: Transformer Engine demands it
    backend.evidence(model)                                          # what the model really holds, counted now

    with backend.probe():                                            # at probe steps, around forward and backward
        ...
    backend.scales()                                                 # {"layers.0.attn.wq.input": ScaleStat, ...}

What ran is told from `evidence`, never from the flag that asked for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from labkit.errors import LabError
from labkit.precision.blocks import BLOCK
from labkit.precision.choose import check_dims, choose_linears, in_words, is_linear, nearest, no_parameters, type_name
from labkit.precision.flags import HIGH
from labkit.precision.formats import Format
from labkit.precision.switch import BF16, FP8, set_plain


@dataclass(frozen=True)
class Availability:
    """Can this machine run it? If not: why, and what to do about it, each in one line."""

    ok: bool
    reason: str = ""
    fix: str = ""

    def __str__(self) -> str:
        return "available" if self.ok else f"{self.reason}: {self.fix}" if self.fix else self.reason


@dataclass(frozen=True)
class ConversionReport:
    """What `convert` did. `skipped` maps the name of every linear left alone to the reason; `note` is what a reader of
    the results must know (for example that a backend emulates)."""

    backend: str
    recipe: str
    module_type: str
    converted: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def to_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        left = f", {len(self.skipped)} left ({', '.join(self.skipped)})" if self.skipped else ""
        return f"{self.backend} {self.recipe}: {len(self.converted)} linears are {self.module_type}{left}"


@dataclass(frozen=True)
class ScaleStat:
    """One tensor at one probe step. All five are finite floats.

    scale      the factor in force; with several per tensor (rows, blocks) the smallest, which serves the largest values
    amax       max |x|, before scaling; an overflowed (inf) or NaN tensor gives the largest fp32 number
    overflow   per cent of the elements beyond the format's largest value under that scale (they saturate)
    underflow  per cent of the elements that were not zero and became zero
    sqnr       dB, of the quantised tensor against the tensor; for ".output": of the layer's output against fp32
    """

    scale: float
    amax: float
    overflow: float
    underflow: float
    sqnr: float

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


class Backend:
    """A precision backend. Subclasses set the names and fill in `_availability` and `replace`.

    An instance serves one model: it remembers what it converted. Get a fresh one from `get_backend`.
    """

    name = ""
    recipes: tuple[str, ...] = ()  # the first is the default
    param_dtype = torch.bfloat16  # what FSDP2 gathers weights in; linears compute from this
    alignment = 16  # in_features, out_features and tokens must be multiples of this
    compiles = "block"  # torch.compile takes a "block" whole, or only what is "between" linears
    parameter_recipes: tuple[str, ...] = ()  # those under which the parameters themselves can be FP8
    remembering: tuple[str, ...] = ()  # those whose scales come from earlier steps
    note = ""

    def __init__(self) -> None:
        self.recipe: str | None = None
        self.phase = FP8  # or BF16, for now: see `switch`
        self.fp8_parameters = False  # set it before `convert`
        self.masters: dict[nn.Parameter, Tensor] | None = None  # until the optimizer takes them over
        self.modules: dict[str, nn.Module] = {}  # name -> converted linear
        self.linears: list[str] = []  # their names as `convert` found them; fusing changes `modules`
        self._stats: dict[str, ScaleStat] = {}

    # What a subclass says.

    def _availability(self, recipe: str, device: torch.device | None) -> Availability:
        """May raise anything: `availability` turns it into words."""
        return Availability(True)

    def replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        """The linear that computes like `recipe`, holding the very same Parameter objects as `linear`."""
        raise NotImplementedError

    def scaling(self, linear: nn.Module, slot: str, x: Tensor) -> tuple[Format, Tensor] | None:
        """(format, scale) in force for slot "input", "weight" or "grad" of a converted linear; None: not quantised.

        x: [rows, columns]. The scale is fp32 and broadcasts against x.
        """
        return None

    def numbers(self) -> dict[str, Any]:
        """The flags (see labkit.precision.flags) that this recipe decides: `HIGH`, with what differs from it."""
        return dict(HIGH)

    def store(self, parameter: Tensor, master: Tensor) -> None:
        """Write FP32 `master` into an FP8 parameter, rounded to its grid. Both whole, or both this run's shards."""
        raise LabError(f"precision backend '{self.name}' has no FP8 parameters")

    def values(self, parameter: Tensor) -> Tensor:
        """What an FP8 parameter holds, as an FP32 tensor of its own, sharded as the parameter is."""
        raise LabError(f"precision backend '{self.name}' has no FP8 parameters")

    def quantise_parameters(self) -> dict[nn.Parameter, Tensor]:
        """Turn the weights of the converted linears into FP8 parameters, once they have their first values; returns
        {parameter: FP32 master weight}."""
        raise LabError(f"precision backend '{self.name}' has no FP8 parameters")

    def autocast(self) -> AbstractContextManager:
        """Around the forward pass, and only there."""
        return nullcontext()

    def fuse(self, model: nn.Module) -> None:
        """Let the backend's own kernels take over a block's norms and SwiGLU as well. Call it after `convert`."""
        raise LabError(
            f"precision backend '{self.name}' has no fused blocks: take out fused = true, or use backend 'te'"
        )

    def checkpoint(self, forward, *args):
        """forward(*args), its activations recomputed in backward instead of kept."""
        from torch.utils.checkpoint import checkpoint

        return checkpoint(forward, *args, use_reentrant=False)

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's scaling state that weights do not hold, as plain CPU tensors: delayed scaling's histories."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what `state_dict` gave; call it after `convert`."""

    # What all backends do the same way.

    def switch(self, phase: str) -> None:
        """From now on the converted linears compute in `phase`, "fp8" or "bf16". In the middle of a run, if need be:
        weights, optimizer and compiled code stay (the other phase is one more graph)."""
        self.phase = phase
        set_plain(list(self.modules.values()), phase == BF16)

    def in_fp8(self) -> bool:
        """Do the converted linears compute in FP8 now? Told from the modules."""
        return bool(self.modules) and not any(getattr(module, "plain", False) for module in self.modules.values())

    def flags(self) -> dict[str, Any]:
        """What a checkpoint says of the precision that it was made in: see labkit.precision.flags."""
        return {
            "backend": self.name,
            "recipe": self.recipe,
            **self.numbers(),
            "fp8_parameters": self.fp8_parameters,
            "phase": self.phase,
            "linears": [f"{name}.weight" for name in self.linears],
        }

    def check_calibration(self, passes: int) -> None:
        """LabError if passes that only look at amax would find nothing out."""
        if passes and self.recipe not in self.remembering:
            raise LabError(
                f"calibrate = {passes} is for scales that come from earlier steps (te's recipe delayed); "
                f"{self.name} {self.recipe} finds its scales anew in every step: leave calibrate out"
            )

    def check_parameters(self, ranks: int) -> None:
        """LabError if the converted linears, cut over so many ranks, cannot have FP8 parameters."""
        if not self.numbers()["power_of_two"]:
            raise LabError(
                f"FP8 parameters need power-of-two scales, and {self.name} {self.recipe} uses others here: "
                "unset NVTE_FP8_BLOCK_SCALING_FP32_SCALES"
            )
        rows = BLOCK * ranks if ranks > 1 else 1
        uneven = [f"{name} ({m.out_features})" for name, m in self.modules.items() if m.out_features % rows]
        if uneven:
            raise LabError(
                f"FP8 parameters on {ranks} ranks need out features that are multiples of {rows}, or a "
                f"block of 128 rows would lie on two ranks; these are not: {', '.join(uneven)}: use fewer "
                "ranks, or add them to [precision] skip"
            )

    def availability(self, recipe: str | None = None, device: torch.device | str | None = None) -> Availability:
        """Can this machine run `recipe` on `device` (default: the GPU if there is one)? Never raises."""
        try:
            return self._availability(self.check_recipe(recipe), torch.device(device) if device else None)
        except LabError as error:
            return Availability(False, str(error))
        except (Exception, SystemExit) as error:  # a broken install raises whatever it likes, SystemExit included
            return Availability(
                False,
                f"{self.name} cannot be used: {in_words(error)}",
                "choose another backend or repair the installation",
            )

    def check_recipe(self, recipe: str | None) -> str:
        """The recipe's name, the default for None; LabError naming the nearest one if there is no such recipe."""
        if recipe is None:
            return self.recipes[0]
        if recipe not in self.recipes:
            raise LabError(f"precision backend '{self.name}' has no recipe '{recipe}'{nearest(recipe, self.recipes)}")
        return recipe

    def needs_alignment(self, recipe: str) -> int:
        """What dims and tokens must be multiples of under this recipe; 1: anything goes."""
        return self.alignment

    def convert(
        self,
        model: nn.Module,
        recipe: str | None = None,
        skip: Iterable[str] = (),
        device: torch.device | str | None = None,
    ) -> ConversionReport:
        """Replace every nn.Linear of `model` that no pattern of `skip` names; in place; weights are kept, not copied.

        A pattern is a module's name, the last parts of it ("head", "attn.wo"), a module above it ("layers.0"), or a
        glob ("layers.*.ffn.w2"). Call it before checkpointing, compiling and sharding. Works on the meta device; then
        `device` says where the model will live (default: the GPU if there is one).
        LabError: unavailable backend, unknown recipe, a pattern that names no module, dims that do not divide, nothing
        left to convert.
        """
        recipe, skip = self.check_recipe(recipe), list(skip)
        device = device or next((p.device for p in model.parameters() if not p.is_meta), None)
        able = self.availability(recipe, device)
        if not able.ok:
            raise LabError(f"precision backend '{self.name}' ({recipe}) cannot run here: {able}")
        if self.modules:
            raise LabError(f"this '{self.name}' backend has converted a model: take a fresh one from get_backend")
        wanted, skipped = choose_linears(model, skip)
        if not wanted:
            raise LabError(
                f"precision backend '{self.name}' finds nothing to convert: "
                + (
                    f"the skip list {skip} names all {len(skipped)} linears"
                    if skipped
                    else "the model has no nn.Linear (was it converted before?)"
                )
            )
        check_dims(wanted, self.needs_alignment(recipe), f"{self.name} {recipe}")
        self.recipe = recipe
        if self.fp8_parameters and recipe not in self.parameter_recipes:
            raise LabError(no_parameters(self.name, self.parameter_recipes))
        for name, linear in wanted.items():
            new = self.replace(linear, recipe)
            new.train(linear.training)
            self.modules[name] = new
            if new is not linear:
                parent, _, child = name.rpartition(".")
                setattr(model.get_submodule(parent), child, new)
        self.linears = list(wanted)
        return ConversionReport(
            self.name, recipe, type_name(next(iter(self.modules.values()))), list(self.modules), skipped, self.note
        )

    def check_tokens(self, tokens: int) -> None:
        """LabError if a micro-batch of so many tokens per rank does not fit: weight gradients sum over them."""
        need = self.needs_alignment(self.recipe or self.recipes[0])
        if tokens % need:
            raise LabError(
                f"{self.name} {self.recipe} needs micro-batches of a multiple of {need} tokens per rank, "
                f"not {tokens}: change batch_size, seq_len or accumulation"
            )

    def probe(self) -> AbstractContextManager:
        """Around forward and backward of one micro-batch: collects what `scales` then returns. No hooks outside it."""
        from labkit.precision.probe import Probe

        return Probe(self)

    def scales(self) -> dict[str, ScaleStat]:
        """The last probe: "<module>.input", ".weight", ".grad" and ".output". This rank's tensors only."""
        return dict(self._stats)

    def evidence(self, model: nn.Module) -> dict:
        """What the model holds now: {"backend", "recipe", "converted", "module_types": {type: count}}.

        Counted over the model, not remembered: linears converted and later replaced by something else do not count.
        How long they computed in FP8 is the loop's to count (`fp8_steps`). With FP8 parameters also "fp8_parameters":
        how many weights hold nothing but FP8 values.
        """
        present = {id(module) for module in model.modules()}
        alive = [module for module in self.modules.values() if id(module) in present]
        kinds = Counter(type_name(m) for m in model.modules() if is_linear(m))
        found = {
            "backend": self.name,
            "recipe": self.recipe,
            "converted": len(alive),
            "module_types": dict(sorted(kinds.items())),
        }
        if self.fp8_parameters:
            found["fp8_parameters"] = sum(self.holds_fp8(module.weight) for module in alive)
        return found

    def plain(self, weight: Tensor) -> Tensor:
        """A converted linear's weight as an ordinary tensor, whatever it is kept as."""
        return weight

    def holds_fp8(self, parameter: Tensor) -> bool:
        """Does this rank's part of the parameter hold FP8 values and nothing else?"""
        return False
