"""FSDP2: who holds what, in which type, when; and that it computes the same."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from labkit.comm.ranks import RankPool, run_ranks
from labkit.errors import LabError
from labkit.model.decoder import Transformer, init_weights
from labkit.parallel.shard import ReduceScatter, materialize
from tests.train import sharding_jobs as sharding
from tests.train import training_jobs as jobs


@pytest.fixture(scope="module")
def two():
    with RankPool(2) as pool:
        yield pool


def test_each_rank_holds_its_part_in_fp32(two):
    full = {n: p.detach() for n, p in jobs.plain_model(jobs.small_config()).named_parameters()}
    parts = two.run(sharding.parts, timeout=120.0)
    for name, weight in full.items():
        mine = [p[name] for p in parts]
        assert all(part.dtype == torch.float32 for part in mine)
        assert torch.equal(torch.cat(mine), weight), name  # the parts, put together: bit for bit
        assert len(mine[0]) == -(-len(weight) // 2)  # 257 rows: 129 and 128


def test_what_a_block_sees(two):
    for seen in two.run(sharding.inside_a_block, timeout=120.0):
        assert seen["weights inside"] == {("torch.bfloat16", (48, 32))}  # whole, and in the compute type
        assert seen["activations"] == "torch.bfloat16"
        assert seen["rotary tables"] == {"torch.float32"}  # not rounded
        assert seen["gradients"] == {"torch.float32"}
        assert seen["gathered while layers.0 runs"] <= {"layers.0", "layers.1", "root"}  # not the head
        assert seen["gathered after forward"] == {"root", "head"}  # blocks freed, these kept
        assert seen["gathered after backward"] == set()


def test_where_the_head_is_does_not_change_a_bit(two):
    """Its own messages, the root's, or none of its own because it is tied: the same sums in the same order."""
    for apart, together, tied in two.run(sharding.heads, timeout=120.0):
        assert apart.pop("wrapped") == {"layers.0", "layers.1", "root", "head"}
        assert together.pop("wrapped") == tied.pop("wrapped") == {"layers.0", "layers.1", "root"}
        assert apart.keys() == together.keys() and apart.keys() - tied.keys() == {"head.weight"}
        assert all(torch.equal(apart[name], together[name]) for name in apart)
        assert all(weight.abs().max() > 0 for weight in apart.values())


def test_what_three_micro_batches_send(two):
    """Four modules have messages: two blocks, the head, the root. A block's weights are gathered for its forward and
    for its backward, or once if they are kept; the head's and the root's are always kept from one to the other."""
    for each, kept, once, once_kept in two.run(sharding.messages, timeout=120.0):
        assert each[0] == {"_allgather_base_": 3 * (2 + 2 * 2), "_reduce_scatter_base_": 3 * 4}
        assert kept[0] == {"_allgather_base_": 3 * 4, "_reduce_scatter_base_": 3 * 4}
        assert once[0] == {"_allgather_base_": 3 * (2 + 2 * 2), "_reduce_scatter_base_": 4}
        assert once_kept[0] == {"_allgather_base_": 4, "_reduce_scatter_base_": 4}
        for _, norm, weights, held in (kept, once, once_kept):
            # The same gradients, added in FP32 in another order; 1e-5 is a hundred of its rounding errors.
            assert norm == pytest.approx(each[1], rel=1e-5)
            assert held == set(), "nothing stays gathered after the step"
            for name, weight in weights.items():
                torch.testing.assert_close(weight, each[2][name], rtol=0, atol=2e-4, msg=name)  # 2 steps of 1e-2


def test_gradients_are_averaged_in_fp32(two):
    for gap, nonzero in two.run(sharding.fp32_reduction, timeout=120.0):
        assert gap == 0.0  # exactly the fp32 mean of the two ranks' bf16 gradients: a sum of two commutes
        assert nonzero > 0


def test_a_gradient_s_memory_is_taken_on_the_stream_that_computes(monkeypatch):
    """Without a GPU: on which stream memory is asked for decides what it can be used for next."""
    gpu, entered, seen = torch.device("cuda", 1), [], []

    @contextmanager
    def stream(which):
        entered.append(which)
        yield
        entered.pop()

    def empty(*size, **how):
        return SimpleNamespace(args=(size, how), on=tuple(entered), record_stream=seen.append)

    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: ("computes", device))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("messages", device))
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch, "empty", empty)
    memory = ReduceScatter().allocate((6,), dtype=torch.float32, device=gpu)
    assert memory.args == ((6,), {"dtype": torch.float32, "device": gpu}) and memory.on == (("computes", gpu),)
    assert seen == [("messages", gpu)], "the allocator waits for whoever works with it"
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: ("computes", device))
    ReduceScatter().allocate((6,), dtype=torch.float32, device=gpu)
    assert len(seen) == 1, "its own stream needs no waiting"
    memory = ReduceScatter().allocate((6,), dtype=torch.float32, device=torch.device("cpu"))
    assert memory.on == () and len(seen) == 1


def test_the_message_is_the_one_that_was_asked_for(monkeypatch):
    """Its group is not all ranks where a model is cut over tp as well."""
    seen = {}
    name = "reduce_scatter_single" if hasattr(torch.distributed, "reduce_scatter_single") else "reduce_scatter_tensor"
    monkeypatch.setattr(torch.distributed, name, lambda out, inp, **how: seen.update(out=out, inp=inp, **how) or "work")
    assert ReduceScatter()("out", "in", "dp", "avg", True) == "work"
    assert seen == {"out": "out", "inp": "in", "group": "dp", "op": "avg", "async_op": True}


def test_every_sharded_part_takes_its_gradients_memory_so(two):
    for count in two.run(sharding.gradient_memory, timeout=120.0):
        assert count == 2 * 4  # what is sent and what is kept, of two blocks, the head and the root


def test_from_meta_to_the_same_weights_with_ties_kept(two):
    plain = jobs.plain_model(jobs.small_config(model=dict(tie_embeddings=True)))
    for weights, tied, meta_left, moved_together in two.run(sharding.tied_from_meta, timeout=120.0):
        assert tied and meta_left == 0 and moved_together
        assert all(torch.equal(weights[name], p) for name, p in plain.named_parameters())


def test_master_weights_must_be_fp32(two):
    with pytest.raises(LabError, match="tok_embed.weight is not float32.*param_dtype"):
        two.run(sharding.half_precision_master, timeout=120.0)


def test_ranks_on_threads_cannot_shard():
    with pytest.raises(LabError, match="processes"):
        run_ranks(sharding.parts, size=2, backend="threads", timeout=60.0)


def test_materialize_keeps_the_tie_of_a_model_that_is_not_sharded():
    with torch.device("meta"):
        model = Transformer(jobs.small_config(model=dict(tie_embeddings=True)).resolved_model)
    materialize(model, torch.device("cpu"), lambda m: init_weights(m, 0))
    assert model.head.weight is model.tok_embed.weight and not model.head.weight.is_meta
    real = nn.Linear(2, 2)
    assert materialize(real, torch.device("cpu"), lambda m: nn.init.ones_(m.weight)).weight.sum() == 4
