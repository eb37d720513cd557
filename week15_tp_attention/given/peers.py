"""The same block by libraries, on the same weights, timed beside your own.

    DTensor, plain        parallelize_module: column- and row-parallel linears, x and y whole
    DTensor, sequence     the same with norms and residuals cut along the positions
    torch async TP        that, compiled, with products and messages fused into pipelines through symmetric memory
    te.Linear             Transformer Engine's parallel_mode; W_q, W_k, W_v joined, W_1 and W_3 too
    te.Linear, sequence   the same with sequence_parallel=True
    te.Linear, FP8 ...    the same (plain) with an FP8 recipe, amax agreed over the tensor-parallel ranks

Each class takes what `blocks.Halves` takes, and raises LabError or whatever the library raises where it cannot run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from labkit.errors import LabError
from labkit.model.config import ModelConfig
from labkit.model.decoder import Block, rotary_tables
from week15_tp_attention.given.blocks import Joined, Parts, Shape


class Called(nn.Module):
    """A function where a module is expected."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


class WithDTensor(nn.Module):
    """labkit's own block, spread by torch's `parallelize_module`. `ledger`: whether the group's ledger sees what
    DTensor sends (microseconds a message: not where it is timed)."""

    cut_along_T, ledger = False, False

    def __init__(self, whole: dict[str, Tensor], group: Any, shape: Shape, given: Parts) -> None:
        super().__init__()
        config = ModelConfig(
            vocab_size=16,
            d_model=shape.D,
            n_layers=1,
            n_heads=shape.n_heads,
            n_kv_heads=shape.n_kv_heads,
            d_ffn=shape.F,
            max_seq_len=shape.T,
        )
        device, dtype = whole["wq"].device, whole["wq"].dtype
        names = {"attn.wq": "wq", "attn.wk": "wk", "attn.wv": "wv", "attn.wo": "wo"}
        names |= {"ffn.w1": "w1", "ffn.w3": "w3", "ffn.w2": "w2", "attn_norm": "attn_norm", "ffn_norm": "ffn_norm"}
        with torch.device(device):
            self.block = Block("layers.0", config, lambda name, i, o: nn.Linear(i, o, bias=False)).to(dtype)
        self.block.load_state_dict({f"{there}.weight": whole[here] for there, here in names.items()})
        self.block.attn.core = given.core  # type: ignore[assignment]  # the same for all contenders
        self.block.ffn.act = Called(given.act)  # a module where a function stood
        self.cos, self.sin = rotary_tables(shape.T, shape.d_head, 500_000.0, device)
        self.spread(group.device_mesh(ledger=self.ledger))

    def spread(self, mesh: Any) -> None:
        from torch.distributed.tensor.parallel import parallelize_module

        parallelize_module(self.block, mesh, self.plan())

    def plan(self) -> dict[str, Any]:
        """What `parallelize_module` is given, by module."""
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel

        whole = Replicate()
        return {
            # Once for the three (two) products that read x: else each has an all-reduce of its own in backward.
            "attn": PrepareModuleInput(input_layouts=(whole, None, None), desired_input_layouts=(whole, None, None)),
            "ffn": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(whole,)),
            **{f"attn.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
            **{f"ffn.{name}": ColwiseParallel() for name in ("w1", "w3")},
            "attn.wo": RowwiseParallel(),
            "ffn.w2": RowwiseParallel(),
        }

    def attention(self, x: Tensor) -> Tensor:
        return self.block.attn(x, self.cos, self.sin)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x, self.cos, self.sin)


class WithDTensorSequence(WithDTensor):
    cut_along_T = True

    def plan(self) -> dict[str, Any]:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            RowwiseParallel,
            SequenceParallel,
        )

        cut, whole = Shard(1), Replicate()
        return {
            "attn_norm": SequenceParallel(use_local_output=True),
            "ffn_norm": SequenceParallel(use_local_output=True),
            "attn": PrepareModuleInput(input_layouts=(cut, None, None), desired_input_layouts=(whole, None, None)),
            "ffn": PrepareModuleInput(input_layouts=(cut,), desired_input_layouts=(whole,)),
            **{f"attn.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
            **{f"ffn.{name}": ColwiseParallel() for name in ("w1", "w3")},
            "attn.wo": RowwiseParallel(output_layouts=cut),
            "ffn.w2": RowwiseParallel(output_layouts=cut),
        }


class WithAsyncTP(WithDTensorSequence):
    """torch's asynchronous tensor parallelism: a pass of the compiler that cuts products and messages in chunks."""

    def __init__(self, whole: dict[str, Tensor], group: Any, shape: Shape, given: Parts) -> None:
        if group.device.type != "cuda":
            raise LabError("torch's asynchronous tensor parallelism needs GPUs with symmetric memory")
        # The compiler sees the whole block: parts that are compiled by themselves would be black boxes to it.
        from week15_tp_attention.given.blocks import parts

        super().__init__(whole, group, shape, parts(compiled=False))

    def spread(self, mesh: Any) -> None:
        import torch._inductor.config as inductor
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        super().spread(mesh)
        inductor._micro_pipeline_tp = True  # torch has no public switch
        enable_symm_mem_for_group(mesh.get_group().group_name)
        self.whole_block = torch.compile(self.block, dynamic=False)
        self.whole_attention = torch.compile(self.block.attn, dynamic=False)

    def attention(self, x: Tensor) -> Tensor:
        return self.whole_attention(x, self.cos, self.sin)

    def forward(self, x: Tensor) -> Tensor:
        return self.whole_block(x, self.cos, self.sin)


class WithTE(Joined):
    """Transformer Engine's linears in the places of the joined weights."""

    sequence = False
    recipe: str | None = None

    def __init__(self, weights: dict[str, Tensor], group: Any, shape: Shape, given: Parts) -> None:
        super().__init__(weights, group, shape, given)
        if group.device.type != "cuda":
            raise LabError("Transformer Engine needs a CUDA GPU")
        if self.sequence and shape.B > 1:
            raise LabError("its sequence_parallel cuts the first dimension, and here that is the batch: one sequence")
        import transformer_engine.pytorch as te

        self.te, self.process_group = te, group.device_mesh().get_group()
        N, dtype = group.size, weights["wq"].dtype
        self.cut_along_T = self.sequence
        modes = {"wqkv": "column", "w13": "column", "wo": "row", "w2": "row"}
        linears = {}
        for name, mode in modes.items():
            out, inputs = self.w[name].shape
            sizes = (inputs, out * N) if mode == "column" else (inputs * N, out)  # features are global sizes
            more = {"tp_group": self.process_group, "tp_size": N, "parallel_mode": mode}
            linear = te.Linear(
                *sizes, bias=False, params_dtype=dtype, sequence_parallel=self.sequence, device="cuda", **more
            )
            with torch.no_grad():
                linear.weight.copy_(self.w[name])
            linears[name] = linear
            del self.w[name]
        self.linears = nn.ModuleDict(linears)
        self._recipe = None

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = self.linear("wqkv", x).split(self.widths, dim=-1)
        return self.linear("wo", self.heads(q, k, v))

    def feed_forward(self, x: Tensor) -> Tensor:
        gate, up = self.linear("w13", x).chunk(2, dim=-1)
        return self.linear("w2", self.given.act(gate, up))

    def linear(self, name: str, x: Tensor) -> Tensor:
        # Under sequence_parallel the first dimension is the one that is cut: rows of tokens, in the ranks' order.
        return self.linears[name](x.flatten(0, 1)).unflatten(0, (len(x), -1))

    def autocast(self) -> AbstractContextManager:
        """Around the forward alone: FP8 with the recipe, and nothing without."""
        if self.recipe is None:
            return nullcontext()
        if self._recipe is None:
            from labkit.precision.te_backend import te_recipe

            self._recipe = te_recipe(self.recipe)
        names = inspect.signature(self.te.autocast).parameters
        group = "amax_reduction_group" if "amax_reduction_group" in names else "fp8_group"
        return self.te.autocast(enabled=True, recipe=self._recipe, **{group: self.process_group})


class WithTESequence(WithTE):
    sequence = True


class WithTEDelayed(WithTE):
    recipe = "delayed"


class WithTECurrent(WithTE):
    recipe = "current"


PEERS: dict[str, Any] = {
    "DTensor, plain": WithDTensor,
    "DTensor, sequence": WithDTensorSequence,
    "te.Linear": WithTE,
    "te.Linear, sequence": WithTESequence,
    "te.Linear, FP8 delayed": WithTEDelayed,
    "te.Linear, FP8 current": WithTECurrent,
    "torch async TP": WithAsyncTP,
}
WHOLE = (WithDTensor,)  # these take the whole weights and cut them by themselves
