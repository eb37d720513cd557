"""FP8 parameters: the weights that a model keeps and sends are FP8, and the optimizer remembers what was rounded away.

Usually an FP8 run keeps FP32 weights, and rounds a copy to FP8 for each product. It then sends BF16 copies between the
ranks, which nobody multiplies. With FP8 parameters the weight itself is FP8, codes and scales, so a gather sends one
byte a weight instead of two (Transformer Engine's `quantized_model_init`).

An update is often a thousandth of a weight or less, and a step of E4M3 is a sixteenth: added to an FP8 weight it would
be rounded away, always. So AdamW updates an FP32 **master** weight (arXiv:1710.03740), which nothing else sees, and the
parameter becomes its rounding:

    master <- AdamW(master, gradient)           parameter <- round(master)

The first master is the initial weight before rounding, so a run with FP8 parameters starts from the same weights as one
without. Everything else is `torch.optim.AdamW`, the very same arithmetic: what a comparison of the two then shows is
the parameters' format and nothing else. (Transformer Engine's own `FusedAdam(master_weights=True)` does the same in its
kernels.)

Which tensor holds what: the model's parameter p, FP8; p's entry in the optimizer's state: "master", "exp_avg",
"exp_avg_sq", FP32, sharded as p is. A checkpoint holds the parameter's values and the master (labkit.train.state).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from labkit.precision.base import FP8Parameters

MASTER = "master"


class MasterAdamW(torch.optim.AdamW):
    """AdamW in which parameters that `masters` names are FP8: {parameter: FP32 master weight, sharded alike}.

    fp8: made them; it writes (`store`) and reads (`values`) an FP8 parameter.
    """

    def __init__(
        self, groups: list[dict[str, Any]], masters: dict[nn.Parameter, Tensor], fp8: FP8Parameters, **options: Any
    ) -> None:
        super().__init__(groups, **options)
        self.fp8 = fp8
        # AdamW would make its state at the first update, in the parameter's own type: FP8. And a load wants to find the
        # state of every parameter, or of none.
        for group in self.param_groups:
            for parameter in group["params"]:
                master = masters.get(parameter)
                shape = parameter.detach() if master is None else master
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device if group["fused"] else "cpu"),
                    "exp_avg": torch.zeros_like(shape),
                    "exp_avg_sq": torch.zeros_like(shape),
                    **({} if master is None else {MASTER: master}),
                }

    def masters(self) -> dict[Tensor, Tensor]:
        """{FP8 parameter: its master weight}, the live ones. Asked anew each time: a load replaces them."""
        return {p: state[MASTER] for p, state in self.state.items() if MASTER in state}

    def _init_group(self, group: dict, parameters: list[Tensor], *lists: Any) -> bool:
        """torch's own collecting of what is to be updated, in which masters take their parameters' places."""
        found = super()._init_group(group, parameters, *lists)
        parameters[:] = [self.state[p].get(MASTER, p) for p in parameters]
        return found

    def step(self, closure: Any = None) -> Any:
        result = super().step(closure)
        self.restore()
        return result

    @torch.no_grad()
    def restore(self) -> None:
        """Make every FP8 parameter the rounding of its master: after an update, and after a load."""
        for parameter, master in self.masters().items():
            self.fp8.store(parameter, master)

    def values(self, model: nn.Module) -> dict[str, Tensor]:
        """{name: what the FP8 parameter holds, as an FP32 tensor of its own}."""
        masters = self.masters()
        return {name: self.fp8.values(p) for name, p in model.named_parameters() if p in masters}

    def differing(self, model: nn.Module, saved: dict[str, Tensor]) -> str | None:
        """The first FP8 parameter that is not what `saved` says, on this rank; None if all are."""
        return next(
            (name for name, now in self.values(model).items() if not torch.equal(_local(now), _local(saved[name]))),
            None,
        )


def _local(x: Tensor) -> Tensor:
    return x._local_tensor if isinstance(x, DTensor) else x
