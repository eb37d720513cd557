"""What a precision backend is, and what all backends do the same way.

    backend = get_backend("torchao")
    report = backend.convert(model, PrecisionSpec("tensorwise", skip=("head",)))     # which linears, into what; why not
    with backend.autocast():                                         # around the forward pass only
        loss = model(tokens, targets)
    loss.backward()                                                  # outside: Transformer Engine demands it
    backend.evidence(model)                                          # what the model really holds, counted now

What ran is reported from `evidence`, never from the setting that requested it.
"""

import importlib
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from labkit.errors import LabError, in_words
from labkit.precision.choose import check_dims, choose_linears, is_linear, type_name
from labkit.precision.config import PrecisionSpec
from labkit.precision.flags import HIGH, of_operand
from labkit.precision.matrix import Conflict
from labkit.precision.phases import BF16, FP8, set_plain
from labkit.precision.probe import Probe, ScaleStat
from labkit.precision.products import use as use_products
from labkit.precision.recipes import NO, PARAMETERS, Need, find_recipe, lacks
from labkit.strict import nearest

TILE = 128  # values that share a scale under block scaling: 1 x 128, or 128 x 128 of a weight


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
    """What `convert` did. skipped: {linear: why}; note: what a reader must know; bf16_products: their path on a CPU."""

    backend: str
    recipe: str
    module_type: str
    converted: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    note: str = ""
    bf16_products: dict[str, str] | None = None


def gpu_has(needs: Iterable[Need], device: torch.device | None) -> Availability:
    """Has the GPU (default: the one there is) all that a recipe needs? True where none is meant."""
    if (device is not None and device.type != "cuda") or not torch.cuda.is_available():
        return Availability(True)
    have = torch.cuda.get_device_capability(device)
    if not (need := lacks(needs, have)):
        return Availability(True)
    name = torch.cuda.get_device_name(device)
    return Availability(False, f"{name} has compute capability {have[0]}.{have[1]}, and {need.why}", need.fix)


def importable(title: str, module: str, names: Iterable[str], install: str) -> Availability:
    """Does the module of a library called `title` import, with these names in it?"""
    try:
        missing = [name for name in names if not hasattr(quiet_import(module), name)]
    except (Exception, SystemExit) as error:  # a damaged installation raises whatever it likes
        package = module.partition(".")[0]
        absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package
        why = "is not installed" if absent else f"does not import ({in_words(error)})"
        return Availability(False, f"{title} {why}", install)
    return Availability(False, f"this {title} has no {missing[0]}", install) if missing else Availability(True)


def quiet_import(module: str) -> Any:
    """Import without a library's messages about compiled extensions and other machines, which training does not use."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    finally:
        logging.disable(level)


class FP8Parameters(Protocol):
    """The weights of the converted linears as FP8 tensors, whole or as this rank's DTensors; see labkit.train.optim."""

    def quantise(self) -> dict[nn.Parameter, Tensor]:
        """Make them FP8, once they have their first values; {parameter: FP32 master weight}."""

    def store(self, parameter: Tensor, master: Tensor) -> None:
        """Write FP32 `master` into a parameter, rounded to its grid."""

    def values(self, parameter: Tensor) -> Tensor:
        """What a parameter holds, as an FP32 tensor of its own, sharded as the parameter is."""

    def hold(self, parameter: Tensor) -> bool:
        """Does this rank's part of the parameter hold FP8 values and nothing else?"""


def local_part(x: Tensor) -> Any:
    """This rank's part of a tensor."""
    # The very tensor: `to_local` would make a view, and FP8 tensors have only some views.
    return x._local_tensor if isinstance(x, DTensor) else x


def pieces(x: Tensor) -> dict[str, Tensor]:
    """{what it is: an ordinary tensor}: this rank's part itself, as "", or what lies inside an FP8 tensor of a library."""
    # A library's FP8 tensor is a wrapper around codes and scales: its own size is that of the values it stands for.
    local = local_part(x)
    inside = {name.strip("_"): piece for name, piece in vars(local).items() if isinstance(piece, Tensor)}
    return {"": local} if type(local) in (Tensor, nn.Parameter) or not inside else inside


class Backend:
    """A precision backend for one model. Fresh ones: `get_backend`; what recipes need: labkit.precision.recipes.

    For reading: name, recipes (the first is the default), param_dtype (what FSDP2 gathers and linears compute from),
    compiles (torch.compile takes a "block" whole, or only what is "between" linears), state (for checkpoints); after
    `convert` recipe, modules {name: converted linear} and, if the spec asks for them, parameters (FP8); after a probe
    scales {"layers.0.attn.wq.input": ScaleStat, ...}. A subclass fills in the names with an underscore.
    """

    name = ""
    recipes: tuple[str, ...] = ()
    param_dtype = torch.bfloat16
    compiles = "block"
    note = ""

    def __init__(self) -> None:
        self.recipe: str | None = None
        self.modules: dict[str, Any] = {}
        self.scales: dict[str, ScaleStat] = {}
        self.parameters: FP8Parameters | None = None
        self.state = State(self)
        self._phase = FP8
        self._epsilon: Mapping[str, float] = {}  # by operand, where the spec asks for one
        self._scales: Mapping[str, str] = {}
        self._linears: list[str] = []  # names as `convert` found them; fusing changes `modules`

    # ---- the interface

    def convert(self, model: nn.Module, spec: PrecisionSpec) -> ConversionReport:
        """Replace, in place, every nn.Linear of `model` that no pattern of `spec.skip` names; weights are kept, not copied.

        A pattern is a module's name, its last parts ("head", "attn.wo"), a module above it ("layers.0"), or a glob. Call it
        before checkpointing, compiling and sharding; the meta device will do. LabError: whatever cannot be converted so.
        """
        recipe = self._check_recipe(spec.recipe)
        device = spec.device or next((p.device for p in model.parameters() if not p.is_meta), None)
        able = self._available(recipe, device, spec.fp8_parameters)
        if not able.ok:
            raise LabError(f"precision backend '{self.name}' ({recipe}) cannot run here: {able}")
        if self.modules:
            raise LabError(f"this '{self.name}' backend has converted a model: take a fresh one from get_backend")
        wanted, skipped = choose_linears(model, spec.skip)
        if not wanted:
            none = "the model has no nn.Linear (was it converted before?)"
            why = f"the skip list {list(spec.skip)} names all {len(skipped)} linears" if skipped else none
            raise LabError(f"precision backend '{self.name}' finds nothing to convert: {why}")
        self.recipe, self._epsilon, self._scales = recipe, spec.amax_epsilon, spec.scales
        self._check_settings(spec, wanted)
        if spec.fp8_parameters:
            self.parameters = self._fp8_parameters()
        for name, linear in wanted.items():
            new = self._replace(linear, recipe)
            new.train(linear.training)
            self.modules[name] = new
            if new is not linear:
                parent, _, child = name.rpartition(".")
                setattr(model.get_submodule(parent), child, new)
        self._linears = list(wanted)
        kind = type_name(next(iter(self.modules.values())))
        if spec.fused:
            self._fuse(model)
        products = asdict(use_products()) if device and torch.device(device).type == "cpu" else None
        return ConversionReport(self.name, recipe, kind, list(self._linears), skipped, self.note, products)

    def autocast(self) -> AbstractContextManager:
        """Around the forward pass, and only there."""
        return nullcontext()

    def checkpoint(self, forward: Callable, *args: Any) -> Any:
        """forward(*args), its activations recomputed in backward instead of kept."""
        return checkpoint(forward, *args, use_reentrant=False)

    def switch(self, phase: str) -> None:
        """From now on converted linears compute in `phase`, "fp8" or "bf16"; weights, optimizer and compiled code stay."""
        self._phase = phase
        set_plain(self.modules.values(), phase == BF16)

    @contextmanager
    def probe(self) -> Iterator[None]:
        """Around one micro-batch's forward and backward: collects this rank's `scales`. No hooks outside it."""
        with Probe(self.modules, self._rounding if self._in_fp8() else lambda *_: None, self._plain) as probe:
            yield
        self.scales = probe.stats

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        """What the model holds now, counted over it: {"backend", "recipe", "converted", "module_types": {type: count}},
        in FP8 "power_of_two" and "amax_epsilon" (labkit.precision.flags), "fp8_parameters": weights of FP8 alone."""
        present = {id(module) for module in model.modules()}
        alive = [module for module in self.modules.values() if id(module) in present]
        kinds = Counter(type_name(m) for m in model.modules() if is_linear(m))
        found: dict[str, Any] = {
            "backend": self.name,
            "recipe": self.recipe,
            "converted": len(alive),
            "module_types": dict(sorted(kinds.items())),
        }
        if alive and (numbers := self._numbers())["forward"]:
            found |= {key: numbers[key] for key in ("power_of_two", "amax_epsilon")}
        if self.parameters:
            found["fp8_parameters"] = sum(self.parameters.hold(module.weight) for module in alive)
        return found

    # ---- what a subclass says

    def _able(self, recipe: str, device: torch.device | None, fp8_parameters: bool) -> Availability:
        """Can it run, beside what the GPU must have? May raise anything: `_available` turns it into words."""
        return Availability(True)

    def _replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        """The linear that computes like `recipe`, holding the very same Parameter objects as `linear`."""
        raise NotImplementedError

    def _rounding(self, linear: Any, slot: str, x: Tensor) -> tuple[torch.dtype, Tensor] | None:
        """(float8 dtype, fp32 scale that broadcasts against x [rows, columns]) of "input", "weight" or "grad"."""
        return None

    def _numbers(self) -> dict[str, Any]:
        """The flags (see labkit.precision.flags) that this recipe decides: `HIGH`, with what differs from it."""
        return dict(HIGH)

    def _in_fp8(self) -> bool:
        """Do the converted linears compute in FP8 now? Read from the modules."""
        return bool(self.modules) and not any(getattr(module, "plain", False) for module in self.modules.values())

    def _plain(self, weight: Tensor) -> Tensor:
        """A converted linear's weight as an ordinary tensor, whatever it is kept as."""
        return weight

    def _fuse(self, model: nn.Module) -> None:
        """Let the backend's own kernels take over a decoder block's norms and SwiGLU as well."""
        raise NotImplementedError

    def _fp8_parameters(self) -> FP8Parameters:
        """Of a recipe that declares them."""
        raise NotImplementedError

    def _save(self) -> dict[str, Tensor]:
        """This rank's scaling state that weights do not hold, as plain CPU tensors: delayed scaling's histories."""
        return {}

    def _load(self, state: dict[str, Tensor]) -> None:
        """Put back what `_save` gave."""

    # ---- what all backends check the same way

    def _available(
        self, recipe: str | None, device: torch.device | str | None, fp8_parameters: bool = False
    ) -> Availability:
        """Can this machine run `recipe` on `device` (default: the GPU if there is one)? Never raises."""
        try:
            where, recipe = torch.device(device) if device else None, self._check_recipe(recipe)
            able = gpu_has(find_recipe(self.name, recipe)[1].needs, where)
            return self._able(recipe, where, fp8_parameters) if able.ok else able
        except LabError as error:
            return Availability(False, str(error))
        except (Exception, SystemExit) as error:  # a damaged installation raises whatever it likes, SystemExit included
            fix = "choose another backend or repair the installation"
            return Availability(False, f"{self.name} cannot be used: {in_words(error)}", fix)

    def _check_recipe(self, recipe: str | None) -> str:
        """The recipe's name, the default for None; LabError naming the nearest one if there is no such recipe."""
        if recipe is not None and recipe not in self.recipes:
            raise LabError(f"precision backend '{self.name}' has no recipe '{recipe}'{nearest(recipe, self.recipes)}")
        return recipe or self.recipes[0]

    def _check_settings(self, spec: PrecisionSpec, linears: dict[str, nn.Linear]) -> None:
        """LabError for what does not go with this recipe and these linears, which are still the model's own."""
        who, declared = f"{self.name} {self.recipe}", find_recipe(self.name, self.recipe)[1]
        check_dims(linears, declared.multiple, who)
        if spec.tokens is not None and spec.tokens % declared.multiple:
            raise LabError(
                f"{who} needs micro-batches of a multiple of {declared.multiple} tokens per rank, "
                f"not {spec.tokens}: change batch_size, seq_len or accumulation"
            )
        for feature, wanted in (("fused", spec.fused), (PARAMETERS, spec.fp8_parameters)):
            if wanted and (word := declared.word(feature)).state == NO:
                raise LabError(str(Conflict((who, feature), word.why)))
        if (spec.amax_epsilon or spec.scales) and not declared.scalable:
            keys = " and ".join(key for key in ("amax_epsilon", "scales") if getattr(spec, key))
            raise LabError(
                f"{who} makes its own scales, so there is no {keys} to choose: take it out, or take te block"
            )
        if spec.calibrate and not declared.remembers:
            why = f"{who} finds its scales anew in every step"
            raise LabError(f"calibrate is for scales that come from earlier steps (te delayed); {why}: leave it out")
        if not spec.fp8_parameters:
            return
        # The recipe could; a setting or an environment variable may have given it other scales all the same.
        if not of_operand(self._numbers()["power_of_two"], "weight"):
            chosen = self._scales.get("weight") == "fp32"
            fix = 'take scales.weight = "e8m0"' if chosen else "unset NVTE_FP8_BLOCK_SCALING_FP32_SCALES"
            raise LabError(f"FP8 parameters need power-of-two scales, and {who} uses others here: {fix}")
        rows = TILE * spec.ranks if spec.ranks > 1 else 1
        if uneven := [f"{name} ({m.out_features})" for name, m in linears.items() if m.out_features % rows]:
            need = f"out features that are multiples of {rows}, or a block of 128 rows would lie on two of them"
            raise LabError(
                f"FP8 parameters on {spec.ranks} ranks need {need}; these are not: {', '.join(uneven)}: use fewer "
                "ranks, or add them to [precision] skip"
            )


class State:
    """What a backend computes in and remembers, for schedules and checkpoints."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.in_fp8 = backend._in_fp8
        self.state_dict = backend._save
        self.load_state_dict = backend._load  # after `convert`

    def flags(self) -> dict[str, Any]:
        """What a checkpoint says of the precision that it was made in: see labkit.precision.flags."""
        backend = self._backend
        return {
            "backend": backend.name,
            "recipe": backend.recipe,
            **backend._numbers(),
            "fp8_parameters": backend.parameters is not None,
            "phase": backend._phase,
            "linears": [f"{name}.weight" for name in backend._linears],
        }
