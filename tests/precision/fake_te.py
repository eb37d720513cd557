"""A stand-in for Transformer Engine 2.20's interface, for machines without a GPU.

It has the names and the behaviour that the backend relies on, and checks the calls that the real one would refuse. It
pretends no numerics: its Linear multiplies in the weight's own type. What the backend assumes of the real one was
checked on an H200; FP8 parameters (`quantized_model_init`, `QuantizedTensor`, `reset_parameters`), which follow 2.20's
module/base.py and tensor/float8_blockwise_tensor.py, in short runs.
"""

import contextlib
import sys
import types
from typing import ClassVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from labkit.precision.probe import saturating
from week16_fp8.blockwise import block_scale

HISTORY = 4


class Recipe:
    pass


class DelayedScaling(Recipe):
    pass


class Float8CurrentScaling(Recipe):
    pass


class QParams:
    def __init__(self, power_2_scale, amax_epsilon=0.0):
        self.power_2_scale, self.amax_epsilon = power_2_scale, amax_epsilon


class Float8BlockScaling(Recipe):
    fp8_quant_fwd_inp = fp8_quant_fwd_weight = fp8_quant_bwd_grad = QParams(True)


class Float8BlockQuantizer:
    """Keeps inverse scales as the real one: the last dimension padded to a multiple of 4 (by NaN), and per row of
    128 columns first. Its constructor takes the real one's keywords alone."""

    def __init__(self, fp8_dtype, *, rowwise, columnwise, amax_epsilon, force_pow_2_scales, block_scaling_dim):
        assert fp8_dtype == "e4m3" and rowwise and not columnwise and block_scaling_dim in (1, 2)
        self.epsilon, self.powers, self.square = amax_epsilon, force_pow_2_scales, block_scaling_dim == 2

    def __call__(self, x):
        assert x.is_contiguous() and x.dim() == 2
        scale = block_scale(x, self.square, self.epsilon, self.powers)
        inverse = (scale[::128, ::128] if self.square else scale[:, ::128].t()).reciprocal()
        padded = torch.nn.functional.pad(inverse, (0, -inverse.shape[1] % 4), value=float("nan"))
        return types.SimpleNamespace(_rowwise_scale_inv=padded)


class MXFP8BlockScaling(Recipe):
    fp8_format = types.SimpleNamespace(name="E4M3")


class NVFP4BlockScaling(MXFP8BlockScaling):
    pass


class QuantizedTensor(torch.Tensor):
    """Float8BlockwiseQTensor: E4M3 codes in 128 x 128 blocks, which looks like an ordinary tensor of `dtype`.

    As the real one it refuses a flat view (it gives an ordinary tensor instead), passes no-op views on, and tells FSDP2
    what to gather. `gathered` counts the bytes of every gather.
    """

    gathered: ClassVar[list] = []

    @staticmethod
    def __new__(cls, codes, scale, dtype):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=dtype, device=codes.device)

    def __init__(self, codes, scale, dtype):
        self.codes, self.scale = codes, scale

    def dequantize(self, *, dtype=None):
        rows, columns = self.codes.shape
        scale = self.scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
        return (self.codes.view(torch.float8_e4m3fn).float() / scale).to(dtype or self.dtype)

    def quantize_(self, tensor):
        assert tensor.dtype == torch.float32 and not isinstance(tensor, (DTensor, QuantizedTensor))
        new = quantize(tensor)
        self.codes.copy_(new.codes)
        self.scale.copy_(new.scale)
        return self

    def get_high_precision_init_val(self):
        return getattr(self, "_first", None)

    def clear_high_precision_init_val(self):
        del self._first

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        aten, first = torch.ops.aten, args[0]
        reshaped = func in (aten.view.default, aten.as_strided.default)
        if (
            func is aten.detach.default
            or (reshaped and tuple(args[1]) == tuple(first.shape))
            or (func is aten.slice.Tensor and tuple(args[2:]) == (0, first.shape[args[1]]))
        ):
            return QuantizedTensor(first.codes, first.scale, first.dtype)
        if func is aten.copy_.default:
            raise AssertionError("an FP8 parameter is written by quantize_")
        plain = torch.utils._pytree.tree_map_only(QuantizedTensor, lambda t: t.dequantize(), (args, kwargs or {}))
        return func(*plain[0], **plain[1])

    def fsdp_pre_all_gather(self, mesh, orig_size, contiguous_orig_stride, module, mp_policy):
        assert self.shape[0] % 128 == 0, "rows of a block on two ranks"
        self.gathered.append(self.codes.nbytes + self.scale.nbytes)
        return (self.codes, self.scale), None

    def fsdp_post_all_gather(self, outputs, metadata, param_dtype, *, out=None):
        if out is None:
            return QuantizedTensor(*outputs, param_dtype), outputs
        out.codes, out.scale = outputs


def quantize(tensor):
    scale = block_scale(tensor, square=True)
    return QuantizedTensor(
        saturating(tensor * scale, torch.float8_e4m3fn).view(torch.uint8),
        scale[::128, ::128].contiguous(),
        tensor.dtype,
    )


class State:
    """te's FP8GlobalStateManager, and a diary of what was called."""

    def __init__(self):
        self.enabled, self.recipe = False, None
        self.fp8_init = None  # the recipe of the quantized_model_init region we are in
        self.entered = []  # (enabled, recipe) of each autocast region
        self.forwards = []  # (enabled, recipe type) of each te.Linear forward
        self.checkpoints = 0
        self.weights = []  # what each product multiplied with


class ScalingState:
    def __init__(self, tensors):
        self.scale = torch.ones(tensors)
        self.amax_history = torch.zeros(HISTORY, tensors)


def install(monkeypatch, compute_capability=(9, 0), fp8=(True, ""), block=(True, "")):
    """Put it where `import transformer_engine.pytorch` finds it, with a GPU that torch claims to see; the State."""
    state = State()
    mxfp8, nvfp4 = (((10, 0) <= compute_capability < end, "not here") for end in ((12, 0), (99, 0)))

    class autocast:
        def __init__(self, enabled=True, calibrating=False, recipe=None, amax_reduction_group=None):
            assert recipe is None or isinstance(recipe, Recipe)
            self.now = (enabled, recipe)

        def __enter__(self):
            self.before = (state.enabled, state.recipe)
            state.enabled, state.recipe = self.now
            state.entered.append(self.now)
            return self

        def __exit__(self, *error):
            state.enabled, state.recipe = self.before

    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            w = w.dequantize() if isinstance(w, QuantizedTensor) else w
            ctx.save_for_backward(x, w)
            ctx.weight = w  # as the real one: beyond the backward, until the graph is gone
            state.weights.append(w)
            return x @ w.t()

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w, g.flatten(0, -2).t() @ x.flatten(0, -2)

    @contextlib.contextmanager
    def quantized_model_init(enabled=True, recipe=None, preserve_high_precision_init_val=False):
        assert enabled and isinstance(recipe, Float8BlockScaling) and preserve_high_precision_init_val
        state.fp8_init = recipe
        yield
        state.fp8_init = None

    class Module(nn.Module):
        """What all modules share: scaling state, and the pickled form of it."""

        def __init__(self):
            super().__init__()
            self.fp8_meta, self.fp8_initialized = {}, False

        def init_fp8_metadata(self, num_gemms=1):
            if not state.enabled:
                self.fp8_initialized = False  # as the real one; its scales stay in fp8_meta, unused
            if state.enabled and not self.fp8_initialized and isinstance(state.recipe, DelayedScaling):
                self.fp8_meta.update(scaling_fwd=ScalingState(3 * num_gemms), scaling_bwd=ScalingState(2 * num_gemms))
                self.fp8_initialized = True

        def get_extra_state(self):
            return torch.zeros(3, dtype=torch.uint8)

        def set_extra_state(self, value):
            raise RuntimeError("pickled extra state is refused")

    class Linear(Module):
        def __init__(self, in_features, out_features, *, init_method=None, bias, params_dtype, device):
            super().__init__()
            self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
            self.primary_weights_in_fp8, self.init_method = state.fp8_init is not None, init_method or nn.init.normal_
            self.weight = nn.Parameter(torch.full((out_features, in_features), 0.5, dtype=params_dtype, device=device))
            if bias:
                self.bias = nn.Parameter(torch.zeros(out_features, dtype=params_dtype, device=device))
            else:
                self.bias = torch.Tensor().to(dtype=params_dtype, device=device)  # as the real one: no parameter

        def reset_parameters(self):
            """As the real one, after sharding: values into the local tensor, then its quantised form in its place."""
            parameter = self.weight
            local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
            assert not local.is_meta
            self.init_method(local)
            if self.primary_weights_in_fp8:
                first = local.detach().cpu()
                local = quantize(local.detach())
            if isinstance(parameter, DTensor):
                mesh, whole = parameter.device_mesh, {"shape": parameter.size(), "stride": parameter.stride()}
                self.weight = nn.Parameter(DTensor.from_local(local, mesh, parameter.placements, **whole))
                local = self.weight._local_tensor
            else:
                self.weight = local = nn.Parameter(local)
            if self.primary_weights_in_fp8:
                local._first = first

        def forward(self, x):
            if x.dtype != self.weight.dtype:
                raise TypeError("Data types for parameters must match when outside of autocasted region.")
            self.init_fp8_metadata()
            state.forwards.append((state.enabled, type(state.recipe).__name__))
            y = Multiply.apply(x, self.weight)
            return y + self.bias if self.use_bias else y

    class Normed(Module):
        """What the fused modules share: a norm's weight, parameters looked up at each forward."""

        def __init__(self, d, *, eps, bias, normalization, params_dtype, device):
            super().__init__()
            assert normalization == "RMSNorm" and not bias
            self.eps, self.made = eps, {"dtype": params_dtype, "device": device}
            self.layer_norm_weight, self.layer_norm_bias = self.parameter(d), None

        def parameter(self, *shape):
            return nn.Parameter(torch.full(shape, 7.0, **self.made))

        def norm(self, x):
            w = self.layer_norm_weight
            return torch.nn.functional.rms_norm(x, w.shape, w, self.eps)

    class LayerNormLinear(Normed):
        def __init__(self, in_features, out_features, **common):
            super().__init__(in_features, **common)
            self.in_features, self.out_features = in_features, out_features
            self.weight = self.parameter(out_features, in_features)

        def _get_weight_tensors(self):
            return [self.weight]

        def forward(self, x):
            self.init_fp8_metadata()
            state.forwards.append((state.enabled, type(state.recipe).__name__))
            (w,) = self._get_weight_tensors()
            return Multiply.apply(self.norm(x), w)

    class LayerNormMLP(Normed):
        def __init__(self, hidden, ffn_hidden, *, activation, **common):
            super().__init__(hidden, **common)
            assert activation == "swiglu"
            self.fc1_bias = torch.Tensor()
            self.fc1_weight = self.parameter(2 * ffn_hidden, hidden)
            self.fc2_weight = self.parameter(hidden, ffn_hidden)

        def _get_weight_tensors(self):
            return [self.fc1_weight, self.fc2_weight]

        def forward(self, x):
            self.init_fp8_metadata(num_gemms=2)
            first, second = self._get_weight_tensors()
            gate, up = Multiply.apply(self.norm(x), first).chunk(2, -1)  # the real one takes the first half as the gate
            return Multiply.apply(torch.nn.functional.silu(gate) * up, second)

    def checkpoint(function, *args, use_reentrant=True):
        state.checkpoints += 1
        assert not use_reentrant
        return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)

    recipes = (QParams, DelayedScaling, Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling, NVFP4BlockScaling)
    offered = (autocast, Linear, checkpoint, quantized_model_init, QuantizedTensor, LayerNormLinear, LayerNormMLP)
    modules = {
        "transformer_engine": {},
        "transformer_engine.pytorch": {
            **{each.__name__: each for each in offered},
            "is_fp8_available": lambda return_reason=False: fp8 if return_reason else fp8[0],
            "is_fp8_block_scaling_available": lambda return_reason=False: block if return_reason else block[0],
            "is_mxfp8_available": lambda return_reason=False: mxfp8 if return_reason else mxfp8[0],
            "is_nvfp4_available": lambda return_reason=False: nvfp4 if return_reason else nvfp4[0],
        },
        "transformer_engine.common": {},
        "transformer_engine.common.recipe": {each.__name__: each for each in recipes},
        "transformer_engine.pytorch.tensor.float8_blockwise_tensor": {"Float8BlockQuantizer": Float8BlockQuantizer},
        "transformer_engine_torch": {"DType": types.SimpleNamespace(kFloat8E4M3="e4m3")},
    }
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: compute_capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA Something")
    state.Linear = Linear
    return state
