"""What the rank processes of test_shard.py run. No test in here."""

from collections import Counter

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.model.decoder import Transformer, init_weights
from labkit.parallel.shard import ReduceScatter, materialize, shard
from labkit.train.loop import Hook, Parts, train
from tests.train import training_jobs as jobs


def parts(group):
    model = jobs.sharded_model(jobs.small_config(), group)
    return {n: p.to_local().detach().clone() for n, p in model.named_parameters()}


def gathered(model):
    """Which of the wrapped modules hold whole weights now."""
    return {
        name or "root"
        for name, m in model.named_modules()
        if isinstance(m, FSDPModule) and any(not isinstance(p, DTensor) for p in _own(m))
    }


def _own(module):
    inner = [m for m in module.modules() if m is not module and isinstance(m, FSDPModule)]
    children = {id(p) for m in inner for p in m.parameters()}
    return [p for p in module.parameters() if id(p) not in children]


def batch(group):
    tokens = jobs.CountingCorpus().batch(1, 2, 16, 0)
    mine = tokens[group.rank : group.rank + 1]
    return mine[:, :-1], mine[:, 1:]


def inside_a_block(group):
    model = jobs.sharded_model(jobs.small_config(), group, torch.bfloat16)
    seen = {"rotary tables": set(), "gathered while layers.0 runs": set()}
    block = model.layers["0"]

    def look(module, args):
        x, cos, sin = args
        seen["weights inside"] = {(str(block.ffn.w1.weight.dtype), tuple(block.ffn.w1.weight.shape))}
        seen["activations"] = str(x.dtype)
        seen["rotary tables"] |= {str(cos.dtype), str(sin.dtype)}

    block.register_forward_pre_hook(look)
    block.ffn.register_forward_hook(lambda *_: seen["gathered while layers.0 runs"].update(gathered(model)))
    loss = model(*batch(group))
    seen["gathered after forward"] = gathered(model)
    loss.backward()
    seen["gathered after backward"] = gathered(model)
    seen["gradients"] = {str(p.grad.dtype) for p in model.parameters()}
    return seen


def heads(group):
    """Gradients and loss of one step, and what is wrapped: the head apart, in the root, tied."""
    out = []
    for tie, how in ((False, {}), (False, {"head_apart": False}), (True, {})):
        model = jobs.plain_model(jobs.small_config(model=dict(tie_embeddings=tie)))
        shard(model, group, **how)
        loss = model(*batch(group))
        loss.backward()
        found = {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}
        found["loss"] = loss.detach()
        found["wrapped"] = {name or "root" for name, m in model.named_modules() if isinstance(m, FSDPModule)}
        out.append(found)
    return out


class Messages(TorchDispatchMode, Hook):
    """Counts the collectives of each step's gradients, by name."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "c10d":
            self.steps[-1][op.overloadpacket.__name__] += 1
        return op(*args, **(kwargs or {}))

    def before_step(self, loop):
        self.steps.append(Counter())
        self.__enter__()

    def after_backward(self, loop):
        self.__exit__(None, None, None)


def messages(group):
    """Four ways to run three micro-batches: [(the last step's collectives, its gradient norm, the weights after it,
    the modules that hold whole weights then)]."""
    out, kept, once = [], {"reshard_after_forward": False}, {"reduce_once": True}
    for how in ({}, kept, once, {**once, **kept}):
        config = jobs.small_config(steps=2, batch_size=6, accumulation=3, eval_every=0, **how)
        model = jobs.plain_model(config)
        shard(model, group, torch.bfloat16, reshard_after_forward=config.reshard_after_forward)
        counted, norms = Messages(), jobs.GradNorms()
        train(group, config, jobs.CountingCorpus(), Parts(model, hooks=[counted, norms]))
        out.append((counted.steps[-1], norms.norms[-1], jobs.whole(model), gathered(model)))
    return out


def gradient_memory(group):
    """How often FSDP2 asks `ReduceScatter` for memory in a backward."""
    sizes, allocate = [], ReduceScatter.allocate

    def counted(self, size, **how):
        sizes.append(size)
        return allocate(self, size, **how)

    ReduceScatter.allocate = counted
    try:
        jobs.sharded_model(jobs.small_config(), group)(*batch(group)).backward()
    finally:
        ReduceScatter.allocate = allocate
    return len(sizes)


def fp32_reduction(group):
    """(largest difference from the fp32 mean of both ranks' own bf16 gradients, largest gradient) of one weight."""
    model = jobs.sharded_model(jobs.small_config(), group, torch.bfloat16)
    model(*batch(group)).backward()
    got = model.layers["0"].ffn.w1.weight.grad.full_tensor()

    own = jobs.plain_model(jobs.small_config()).bfloat16()
    own(*batch(group)).backward()
    mine = own.layers["0"].ffn.w1.weight.grad.float()
    want = group.all_gather(mine[None]).sum(0) / 2
    return (got - want).abs().max().item(), want.abs().max().item()


def tied_from_meta(group):
    config = jobs.small_config(model=dict(tie_embeddings=True))
    with torch.device("meta"):
        model = Transformer(config.resolved_model)
    shard(model, group, param_dtype=torch.float32)
    materialize(model, group.device, lambda m: init_weights(m, config.seed))
    tied = model.head.weight is model.tok_embed.weight
    weights = jobs.whole(model)
    model(*batch(group)).backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    together = model.head.weight is model.tok_embed.weight and not torch.equal(
        model.head.weight.full_tensor(), weights["tok_embed.weight"]
    )
    return weights, tied, sum(p.is_meta for p in model.parameters()), together


def half_precision_master(group):
    model = jobs.plain_model(jobs.small_config()).bfloat16()
    shard(model, group)
