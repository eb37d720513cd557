"""Transformer Engine (2.20): te.Linear, under `te.autocast` with one of its recipes.

    bf16       te.Linear without FP8: a baseline that separates FP8's gain from Transformer Engine's other kernels
    delayed    DelayedScaling: the scale of a tensor comes from its largest amax of the last 1024 steps; E4M3 / E5M2
    current    Float8CurrentScaling: the scale comes from the tensor at hand; E4M3 / E5M2
    block      Float8BlockScaling: one power-of-two scale per 1x128 (activations, gradients) or 128x128 (weights);
               E4M3 throughout; Hopper and CUDA 12.9 or newer. Scales and amax epsilons can be chosen by operand
    mxfp8      MXFP8BlockScaling: one E8M0 scale per 32 values; E4M3 throughout; Blackwell
    nvfp4      NVFP4BlockScaling: E2M1 values, one E4M3 scale per 16 and one FP32 scale per tensor; Blackwell

te.Linear stays eager: compiling breaks the graph. Delayed scaling starts blind (scale 1, no history) at the first step
and after a schedule's BF16 phase, unless `[precision] calibrate` measures first; with several ranks it takes the
largest amax over all of them, so that ranks round gathered weights alike.

FP8 parameters (recipe block; labkit.train.optim) are built inside `te.quantized_model_init` and quantised after
sharding, each rank its own 128 x 128 blocks. FSDP2 gathers codes and scales through the tensor type's hooks, which fail
with recomputation, so the matrix refuses it.
"""

import functools
import importlib
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from labkit.errors import LabError
from labkit.precision.base import TILE, Availability, Backend, FP8Parameters, importable, local_part, quiet_import
from labkit.precision.choose import type_name
from labkit.precision.config import PrecisionSpec
from labkit.precision.flags import HIGH, OPERANDS, compact
from labkit.precision.matrix import this_gpu
from labkit.precision.phases import FP8
from labkit.precision.recipes import INSTALL_TE
from labkit.precision.recipes import RECIPES as DECLARED
from labkit.precision.te_fused import FIRST, fuse_block, recomputed
from labkit.precision.torchao_backend import float8_utils

LIBRARY = "transformer_engine.pytorch"
RECIPES = {
    "delayed": "DelayedScaling",
    "current": "Float8CurrentScaling",
    "block": "Float8BlockScaling",
    "mxfp8": "MXFP8BlockScaling",
    "nvfp4": "NVFP4BlockScaling",
}
BLOCKS = {"block": TILE, "mxfp8": 32, "nvfp4": 16}  # values that share a scale
ASK = {"block": "fp8_block_scaling", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}  # te.is_..._available; the others: fp8
TILES = f"{LIBRARY}.tensor.float8_blockwise_tensor"
# The fields of a recipe that say how an operand is quantised.
QUANTISED = {"input": "fp8_quant_fwd_inp", "weight": "fp8_quant_fwd_weight", "gradient": "fp8_quant_bwd_grad"}


class TransformerEngine(Backend):
    name = "te"
    recipes = tuple(DECLARED["te"])
    compiles = "between"

    def __init__(self) -> None:
        super().__init__()
        self._recipe: Any = None  # Transformer Engine's recipe object; one for the whole run

    def _able(self, recipe: str, device: torch.device | None, fp8_parameters: bool) -> Availability:
        if device is not None and device.type != "cuda":
            return Availability(False, f"Transformer Engine needs a CUDA GPU, the model is on '{device}'", INSTALL_TE)
        needed = ("autocast", "Linear", "checkpoint") + ("quantized_model_init",) * fp8_parameters
        if not (able := importable("Transformer Engine", LIBRARY, needed, INSTALL_TE)).ok:
            return able
        if not torch.cuda.is_available():
            fix = "run on a GPU machine; on a CPU take backend 'torchao' or 'emulated'"
            return Availability(False, "Transformer Engine needs a CUDA GPU, and torch sees none", fix)
        if recipe == "bf16":
            return able
        ok, why = getattr(_te(), f"is_{ASK.get(recipe, 'fp8')}_available")(return_reason=True)
        fix = "take recipe 'current' or 'bf16'"
        return Availability(True) if ok else Availability(False, f"Transformer Engine: {why}", fix)

    def _replace(self, linear: nn.Linear, recipe: str) -> nn.Module:
        # te.Linear would draw weights of its own: it is built on the meta device, and given those that are there.
        options = {"bias": linear.bias is not None, "params_dtype": linear.weight.dtype, "device": "meta"}
        around: AbstractContextManager = nullcontext()
        if self.parameters:
            options["init_method"] = lambda weight: None  # see TEParameters.quantise
            keep = {"preserve_high_precision_init_val": True}
            around = _te().quantized_model_init(enabled=True, recipe=self._te_recipe(), **keep)
        with around:
            new = _linear_type(_te().Linear)(linear.in_features, linear.out_features, **options)
        new.weight = linear.weight
        if linear.bias is not None:
            new.bias = linear.bias
        return new

    def _fuse(self, model: nn.Module) -> None:
        """Blocks in fused modules (see te_fused). LabError: a block whose seven linears were not all converted."""
        blocks: Any = model.layers
        for index, block in blocks.items():
            joined = ("attn.wq", "attn.wk", "attn.wv", "ffn.w1", "ffn.w3", "ffn.w2")
            taken = [f"layers.{index}.{part}" for part in joined]
            for name in (*taken, f"layers.{index}.attn.wo"):
                if name not in self.modules:
                    raise LabError(f"fused = true joins a block's linears: take {name} out of [precision] skip")
            for name in taken:
                del self.modules[name]
            for name, module in zip(("attn.wqkv", "ffn.mlp"), fuse_block(block, _te()), strict=True):
                self.modules[f"layers.{index}.{name}"] = module

    def evidence(self, model: nn.Module) -> dict[str, Any]:
        """As the base class's; a fused module counts for the linears it computes."""
        found = super().evidence(model)
        present = {id(module) for module in model.modules()}
        alive = [module for module in self.modules.values() if id(module) in present]
        found["converted"] = sum(getattr(module, "covers", 1) for module in alive)
        fused = Counter(type_name(module) for module in alive if hasattr(module, "covers"))
        found["module_types"] = dict(sorted({**found["module_types"], **fused}.items()))
        return found

    def autocast(self) -> AbstractContextManager:
        if not self._in_fp8():
            return _te().autocast(enabled=False)
        return _te().autocast(enabled=True, recipe=self._te_recipe())

    def _te_recipe(self) -> Any:
        if self._recipe is None:
            self._recipe = te_recipe(str(self.recipe), self._epsilon, self._scales)
        return self._recipe

    def _check_settings(self, spec: PrecisionSpec, linears: dict[str, nn.Linear]) -> None:
        super()._check_settings(spec, linears)
        gpu = this_gpu() if "fp32" in spec.scales.values() else None
        if gpu and gpu >= (10, 0):
            raise LabError(
                "Transformer Engine's block scales are powers of two on Blackwell, and nothing else: take "
                'scales = "e8m0", or leave scales out'
            )

    def switch(self, phase: str) -> None:
        self._phase = phase  # `autocast` reads it; the modules stay as they are

    def checkpoint(self, forward: Callable, *args: Any) -> Any:
        return _te().checkpoint(functools.partial(recomputed, forward, []), *args, use_reentrant=False)

    def _in_fp8(self) -> bool:
        return bool(self.modules) and self.recipe != "bf16" and self._phase == FP8

    def _numbers(self) -> dict[str, Any]:
        if self.recipe == "bf16":
            return dict(HIGH)
        recipe, block = self._te_recipe(), BLOCKS.get(str(self.recipe))
        kind = getattr(getattr(recipe, "fp8_format", None), "name", "E4M3" if block else "HYBRID")
        low = "e2m1" if self.recipe == "nvfp4" else "e4m3"
        how = {o: getattr(recipe, QUANTISED[o], None) for o in OPERANDS}  # delayed scaling has none: plain max / amax
        numbers = {
            "forward": low,
            "backward": low if kind == "E4M3" else "e5m2",
            "scaling": {"delayed": "delayed", "current": "tensor"}.get(str(self.recipe), "block"),
            "block": block,
            "power_of_two": {o: bool(getattr(how[o], "power_2_scale", self.recipe == "mxfp8")) for o in OPERANDS},
            "amax_epsilon": {o: float(getattr(how[o], "amax_epsilon", 0.0)) for o in OPERANDS},
        }
        return compact(numbers)

    def _fp8_parameters(self) -> FP8Parameters:
        return TEParameters(self.modules)

    def _plain(self, weight: Tensor) -> Tensor:
        return weight.dequantize() if self.parameters and self.parameters.hold(weight) else weight

    def _rounding(self, linear: Any, slot: str, x: Tensor) -> tuple[torch.dtype, Tensor] | None:
        if self.recipe in ("bf16", "mxfp8", "nvfp4"):
            return None
        if self.recipe == "block":
            return torch.float8_e4m3fn, tile_scales(x, self._te_recipe(), slot)
        dtype = torch.float8_e5m2 if slot == "grad" else torch.float8_e4m3fn
        if self.recipe == "delayed":  # what Transformer Engine will use, or has just used
            direction, entry = getattr(linear, "entries", FIRST)[slot]
            state = linear.fp8_meta.get(direction)
            return dtype, torch.ones((), device=x.device) if state is None else state.scale[entry].clone()
        return dtype, float8_utils().tensor_to_scale(x, dtype)  # max / amax, as Transformer Engine's

    def _save(self) -> dict[str, Tensor]:
        """Delayed scaling only: for each linear "<name>/<direction>/scale" and ".../amax_history", CPU."""
        state = {}
        for name, module in self.modules.items() if self.recipe == "delayed" and self._in_fp8() else ():
            for direction in ("scaling_fwd", "scaling_bwd"):
                if direction in module.fp8_meta:
                    state[f"{name}/{direction}/scale"] = module.fp8_meta[direction].scale.cpu()
                    state[f"{name}/{direction}/amax_history"] = module.fp8_meta[direction].amax_history.cpu()
        return state

    def _load(self, state: dict[str, Tensor]) -> None:
        if self.recipe != "delayed" or not state or not self._in_fp8():
            return
        with self.autocast():  # the recipe in force decides what state a module builds
            for name, module in self.modules.items():
                module.init_fp8_metadata(num_gemms=2 if hasattr(module, "fc1_bias") else 1)
                for direction in ("scaling_fwd", "scaling_bwd"):
                    for what in ("scale", "amax_history"):
                        getattr(module.fp8_meta[direction], what).copy_(state[f"{name}/{direction}/{what}"])


class TEParameters(FP8Parameters):
    """Weights as Transformer Engine's quantised tensors: E4M3 codes, a power-of-two scale for each 128 x 128."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self.modules = modules

    def quantise(self) -> dict[nn.Parameter, Tensor]:
        masters = {}
        for module in self.modules.values():
            # The library's own way to quantise a weight in place. It first draws new values, by the `init_method` that
            # the module was built with: ours leaves those that are there. Then it hands out what it rounded away.
            module.reset_parameters()
            local = local_part(module.weight)
            if isinstance(module.weight, DTensor):
                no_flat_copy(local)
                if module.weight.device_mesh.size() == 1:
                    gather_as_one(local)
            first = local.get_high_precision_init_val().to(device=local.device, dtype=torch.float32)
            local.clear_high_precision_init_val()
            masters[module.weight] = _like(module.weight, first)
        return masters

    @torch.no_grad()
    def store(self, parameter: Tensor, master: Tensor) -> None:
        local_part(parameter).quantize_(local_part(master))

    @torch.no_grad()
    def values(self, parameter: Tensor) -> Tensor:
        local = local_part(parameter)
        return _like(parameter, (local.dequantize() if self.hold(local) else local).float())

    def hold(self, parameter: Tensor) -> bool:
        return isinstance(local_part(parameter), _te().QuantizedTensor)


def tile_scales(x: Tensor, recipe: Any, slot: str) -> Tensor:
    """Transformer Engine's block scales for x [M, N], one per element: 128 x 128 for slot "weight", else 1 x 128."""
    square = slot == "weight"
    how = getattr(recipe, QUANTISED["gradient" if slot == "grad" else slot])
    quantise = importlib.import_module(TILES).Float8BlockQuantizer(
        fp8_dtype=importlib.import_module("transformer_engine_torch").DType.kFloat8E4M3,
        rowwise=True,
        columnwise=False,
        amax_epsilon=how.amax_epsilon,
        force_pow_2_scales=how.power_2_scale,
        block_scaling_dim=2 if square else 1,
    )
    inverse = quantise(x.contiguous())._rowwise_scale_inv
    rows, columns = -(-x.shape[0] // TILE) if square else x.shape[0], -(-x.shape[1] // TILE)
    scale = (inverse[:rows, :columns] if square else inverse[:columns, :rows].t()).reciprocal()
    scale = scale.repeat_interleave(TILE, 0) if square else scale
    return scale.repeat_interleave(TILE, 1)[: x.shape[0], : x.shape[1]]


def te_recipe(
    name: str, amax_epsilon: Mapping[str, float] | None = None, scales: Mapping[str, str] | None = None
) -> Any:
    """Transformer Engine's recipe object for a name of RECIPES ("block": with epsilons and scales by operand)."""
    epsilon, scales = amax_epsilon or {}, scales or {}
    library = importlib.import_module("transformer_engine.common.recipe")
    recipe = getattr(library, RECIPES[name])()
    for operand in OPERANDS:
        if operand in epsilon or operand in scales:
            # Not arguments of the recipe: 2.20 has them as attributes of its class, which an instance overrides.
            own = getattr(recipe, QUANTISED[operand])
            powers = scales[operand] == "e8m0" if operand in scales else own.power_2_scale
            new = library.QParams(power_2_scale=powers, amax_epsilon=epsilon.get(operand, own.amax_epsilon))
            setattr(recipe, QUANTISED[operand], new)
    return recipe


def gather_as_one(weight: Any) -> None:
    """Let FSDP2 gather this FP8 weight as one tensor of bytes: its codes, then its scales. For one rank."""
    # On one rank there is nothing to send, and FSDP2 copies what a gather would have brought: the first tensor of a
    # weight's, and no other (seen with torch 2.11 to 2.13). On several ranks it gathers all of them.
    before, after = weight.fsdp_pre_all_gather, weight.fsdp_post_all_gather
    shapes: list[tuple[torch.Size, torch.dtype]] = []

    def pack(mesh: Any, orig_size: Any, contiguous_orig_stride: Any, module: Any, mp_policy: Any) -> tuple:
        parts, about = before(mesh, orig_size, contiguous_orig_stride, module, mp_policy)
        shapes[:] = [(part.shape, part.dtype) for part in parts]
        return (torch.cat([part.contiguous().flatten().view(torch.uint8) for part in parts]),), about

    def unpack(gathered: tuple, about: Any, param_dtype: torch.dtype, *, out: Tensor | None = None) -> Any:
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in shapes]
        parts = tuple(
            part.view(dtype).view(shape) for part, (shape, dtype) in zip(gathered[0].split(sizes), shapes, strict=True)
        )
        found = after(parts, about, param_dtype, out=out)
        return found if out is not None else (found[0], gathered)  # FSDP2 frees and allocates these: the whole

    weight.fsdp_pre_all_gather, weight.fsdp_post_all_gather = pack, unpack


def no_flat_copy(weight: Any) -> None:
    """Let FSDP2 keep nothing where it keeps a flat view of this FP8 weight's shard."""
    # Such a tensor has no flat view: it gives an ordinary FP32 copy, 4 bytes a weight beside its own 2. FSDP2 gathers
    # from that view, unless the weight has hooks that say what to gather (torch 2.11 to 2.13). Then nobody reads it.
    usual, own, device = type(weight).view, weakref.ref(weight), weight.device  # no circle: it is freed with its model

    def view(*shape: Any, **how: Any) -> Any:
        return torch.empty(0, device=device) if shape == (-1,) else usual(own(), *shape, **how)

    weight.view = view


def _like(parameter: Tensor, local: Tensor) -> Tensor:
    """`local` as a tensor sharded as `parameter` is."""
    if not isinstance(parameter, DTensor):
        return local
    return DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, shape=parameter.size(), stride=parameter.stride()
    )


def _te() -> Any:
    return quiet_import(LIBRARY)


@functools.cache
def _linear_type(base: type) -> type:
    """te.Linear that leaves its scaling state out of the state dict, so that FP8 and BF16 checkpoints have one form."""
    plain = {name: getattr(nn.Module, name) for name in ("get_extra_state", "set_extra_state")}
    return type("TELinear", (base,), {"__module__": __name__, **plain})
