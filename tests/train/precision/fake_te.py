"""A stand-in for Transformer Engine 2.20's interface, for machines without a GPU.

It has the names and the behaviour that the backend relies on, and checks the calls that the real one would refuse. It
pretends no numerics: its Linear multiplies in the weight's own type. What the backend assumes of the real one was
checked on an H200.
"""
from __future__ import annotations

import sys
import types

import torch
from torch import nn

HISTORY = 4


class Recipe:
    pass


class DelayedScaling(Recipe):
    pass


class Float8CurrentScaling(Recipe):
    pass


class Float8BlockScaling(Recipe):
    pass


class State:
    """te's FP8GlobalStateManager, and a diary of what was called."""

    def __init__(self):
        self.enabled, self.recipe, self.depth = False, None, 0
        self.entered = []          # (enabled, recipe) of each autocast region
        self.forwards = []         # (enabled, recipe type) of each te.Linear forward
        self.backwards = []        # depth of autocast in each te.Linear backward
        self.checkpoints = 0


class ScalingState:
    def __init__(self, tensors):
        self.scale = torch.ones(tensors)
        self.amax_history = torch.zeros(HISTORY, tensors)


def install(monkeypatch, compute_capability=(9, 0), fp8=(True, ""), block=(True, "")):
    """Put it where `import transformer_engine.pytorch` finds it, with a GPU that torch claims to see; the State."""
    state = State()

    class autocast:
        def __init__(self, enabled=True, calibrating=False, recipe=None, amax_reduction_group=None):
            assert recipe is None or isinstance(recipe, Recipe)
            self.now = (enabled, recipe)

        def __enter__(self):
            self.before = (state.enabled, state.recipe)
            state.enabled, state.recipe = self.now
            state.depth += 1
            state.entered.append(self.now)
            return self

        def __exit__(self, *error):
            state.enabled, state.recipe = self.before
            state.depth -= 1

    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w.t()

        @staticmethod
        def backward(ctx, g):
            state.backwards.append(state.depth)
            x, w = ctx.saved_tensors
            return g @ w, g.flatten(0, -2).t() @ x.flatten(0, -2)

    class Linear(nn.Module):
        def __init__(self, in_features, out_features, sequence_parallel=False, fuse_wgrad_accumulation=False,
                     tp_group=None, tp_size=1, get_rng_state_tracker=None, rng_tracker_name=None, init_method=None,
                     bias=True, return_bias=False, params_dtype=None, parallel_mode=None, parameters_split=None,
                     device="cuda"):
            super().__init__()
            self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
            self.fp8_meta, self.fp8_initialized = {}, False
            self.weight = nn.Parameter(torch.full((out_features, in_features), 0.5, dtype=params_dtype, device=device))
            if bias:
                self.bias = nn.Parameter(torch.zeros(out_features, dtype=params_dtype, device=device))
            else:
                self.bias = torch.Tensor().to(dtype=params_dtype, device=device)      # as the real one: no parameter

        def init_fp8_metadata(self, num_gemms=1):
            if state.enabled and not self.fp8_initialized and isinstance(state.recipe, DelayedScaling):
                self.fp8_meta.update(scaling_fwd=ScalingState(3), scaling_bwd=ScalingState(2), recipe=state.recipe)
                self.fp8_initialized = True

        def forward(self, x):
            if x.dtype != self.weight.dtype:
                raise TypeError("Data types for parameters must match when outside of autocasted region.")
            self.init_fp8_metadata()
            state.forwards.append((state.enabled, type(state.recipe).__name__))
            y = Multiply.apply(x, self.weight)
            return y + self.bias if self.use_bias else y

        def get_extra_state(self):
            return torch.zeros(3, dtype=torch.uint8)

        def set_extra_state(self, value):
            raise RuntimeError("pickled extra state is refused")

    class Module(nn.Module):
        """What the fused modules share: a norm's weight, scaling state, a parameter's name looked up at each forward."""
        def __init__(self, d, eps, bias, normalization, params_dtype, device):
            super().__init__()
            assert normalization == "RMSNorm" and not bias
            self.eps, self.fp8_meta = eps, {}
            self.layer_norm_weight = nn.Parameter(torch.full((d,), 7.0, dtype=params_dtype, device=device))
            self.layer_norm_bias = None

        def init_fp8_metadata(self, num_gemms=1):
            if state.enabled and not self.fp8_meta and isinstance(state.recipe, DelayedScaling):
                self.fp8_meta.update(scaling_fwd=ScalingState(3 * num_gemms), scaling_bwd=ScalingState(2 * num_gemms))

        def norm(self, x):
            w = self.layer_norm_weight
            return torch.nn.functional.rms_norm(x, w.shape, w, self.eps)

        def get_extra_state(self):
            return torch.zeros(3, dtype=torch.uint8)

        def set_extra_state(self, value):
            raise RuntimeError("pickled extra state is refused")

    class LayerNormLinear(Module):
        def __init__(self, in_features, out_features, eps=1e-5, bias=True, normalization="LayerNorm", params_dtype=None,
                     device="cuda"):
            super().__init__(in_features, eps, bias, normalization, params_dtype, device)
            self.in_features, self.out_features = in_features, out_features
            self.weight = nn.Parameter(torch.full((out_features, in_features), 7.0, dtype=params_dtype, device=device))

        def _get_weight_tensors(self):
            return [self.weight]

        def forward(self, x):
            self.init_fp8_metadata()
            state.forwards.append((state.enabled, type(state.recipe).__name__))
            (w,) = self._get_weight_tensors()
            return Multiply.apply(self.norm(x), w)

    class LayerNormMLP(Module):
        def __init__(self, hidden, ffn_hidden, eps=1e-5, bias=True, normalization="LayerNorm", activation="gelu",
                     params_dtype=None, device="cuda"):
            super().__init__(hidden, eps, bias, normalization, params_dtype, device)
            assert activation == "swiglu"
            self.fc1_bias = torch.Tensor()
            self.fc1_weight = nn.Parameter(torch.full((2 * ffn_hidden, hidden), 7.0, dtype=params_dtype, device=device))
            self.fc2_weight = nn.Parameter(torch.full((hidden, ffn_hidden), 7.0, dtype=params_dtype, device=device))

        def _get_weight_tensors(self):
            return [self.fc1_weight, self.fc2_weight]

        def forward(self, x):
            self.init_fp8_metadata(num_gemms=2)
            first, second = self._get_weight_tensors()
            gate, up = Multiply.apply(self.norm(x), first).chunk(2, -1)      # the real one takes the first half as the gate
            return Multiply.apply(torch.nn.functional.silu(gate) * up, second)

    def checkpoint(function, *args, use_reentrant=True, **kwargs):
        state.checkpoints += 1
        from torch.utils.checkpoint import checkpoint as plain
        return plain(function, *args, use_reentrant=use_reentrant)

    pytorch = types.ModuleType("transformer_engine.pytorch")
    pytorch.autocast, pytorch.Linear, pytorch.checkpoint = autocast, Linear, checkpoint
    pytorch.LayerNormLinear, pytorch.LayerNormMLP = LayerNormLinear, LayerNormMLP
    pytorch.is_fp8_available = lambda return_reason=False: fp8 if return_reason else fp8[0]
    pytorch.is_fp8_block_scaling_available = lambda return_reason=False: block if return_reason else block[0]
    recipe = types.ModuleType("transformer_engine.common.recipe")
    recipe.DelayedScaling, recipe.Float8CurrentScaling, recipe.Float8BlockScaling = (
        DelayedScaling, Float8CurrentScaling, Float8BlockScaling)
    package, common = types.ModuleType("transformer_engine"), types.ModuleType("transformer_engine.common")
    package.pytorch, package.common, common.recipe = pytorch, common, recipe
    for module in (package, pytorch, common, recipe):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: compute_capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Something")
    state.Linear = Linear
    return state
