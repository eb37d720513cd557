"""Every sharded parameter is a DTensor: right on every mesh; and refused if it is not one."""

import itertools
import re

import pytest
import torch
from torch import nn

from labkit.comm.ranks import RankPool, run_ranks
from labkit.errors import LabError
from labkit.model.decoder import Transformer
from labkit.model.weights import init_weights, perturb, refuse_hand_sharded
from labkit.train import health
from labkit.train.checkpoint import Checkpoints
from labkit.train.optim import adamw
from tests.parallel import mesh_jobs as meshes
from tests.parallel.mesh_jobs import AXES, SHAPE
from tests.train import training_jobs as jobs

CONFIG = jobs.small_config(model=SHAPE)
UNIT = 2.0**-24  # fp32 rounds by at most this much of the result


@pytest.fixture(scope="module")
def four():
    with RankPool(4) as pool:
        yield pool


def plain():
    return init_weights(Transformer(CONFIG.resolved_model), 7)


# ---- first values, norms, the finite check


@pytest.mark.parametrize("kind", AXES)
def test_first_values_are_the_same_on_every_mesh_bit_for_bit(four, kind):
    want = dict(perturb(plain(), 2**-9, 8).named_parameters())
    size = sum(p.nbytes for p in want.values())
    assert sum(four.run(meshes.bytes_to_write, kind, timeout=120.0)) == size, "what all ranks will write is the model"
    for values, placements in four.run(meshes.first_values, kind, timeout=120.0):
        assert values.keys() == want.keys()
        for name, value in values.items():
            assert torch.equal(value, want[name]), name
        if kind == "fsdp 2 x tp 2":
            assert "_StridedShard" in placements, "rows cut twice: by tp, and each part by FSDP2"


@pytest.mark.parametrize("kind", AXES)
def test_the_norm_of_gradients_is_one_process_s(four, kind):
    model = plain()
    shapes = {name: p.shape for name, p in model.named_parameters()}
    exact = {
        what: sum(float(meshes.gradient(n, s, integers).double().square().sum()) for n, s in shapes.items()) ** 0.5
        for what, integers in (("integers", True), ("others", False))
    }
    rows = jobs.CountingCorpus().batch(1, 8, 16, 0)
    model(rows[:, :-1], rows[:, 1:]).backward()
    real = sum(float(p.grad.double().square().sum()) for p in model.parameters()) ** 0.5
    largest = max(s.numel() for s in shapes.values())
    for found in four.run(meshes.norms, kind, timeout=120.0):
        # Squares of integers are summed exactly, so only each tensor's root is rounded: UNIT of it, and no more of all.
        assert found["integers"] == pytest.approx(exact["integers"], rel=1.01 * UNIT)
        # A sum of n squares in fp32 is off by at most n UNIT of itself, in any order; its root by half of that.
        assert found["others"] == pytest.approx(exact["others"], rel=(largest / 2 + 1) * UNIT)
        assert found["clipped"] == pytest.approx(1.0, rel=(largest / 2 + 3) * UNIT)
        # The gradients themselves are other sums of the same terms. Observed: below 2e-7.
        assert found["real"] == pytest.approx(real, rel=1e-6)


@pytest.mark.parametrize("kind", AXES)
def test_one_bad_element_is_known_on_every_rank(four, kind):
    results = four.run(meshes.spoilt, kind, 3, timeout=120.0)
    assert len({str(vitals) for vitals, _ in results}) == 1
    assert results[0][0].bad_grad == 1 and not results[0][0].finite
    assert [names for _, names in results] == ["", "", "", "layers.1.ffn.w2.weight"]


# ---- training and checkpoints


@pytest.fixture(scope="module")
def alone():
    """Six steps of one process, nothing sharded."""
    return run_ranks(meshes.trained, ["one process"], size=1, backend="threads", timeout=120.0)[0]


def same_run(got, want):
    assert got["losses"] == pytest.approx(want["losses"], rel=1e-5)
    for name, weight in want["weights"].items():
        torch.testing.assert_close(got["weights"][name], weight, rtol=0, atol=2e-5, msg=name)  # as in test_loop.py


@pytest.mark.thorough
@pytest.mark.parametrize("kind", AXES)
def test_training_on_any_mesh_is_the_same_training(four, alone, kind):
    for result in four.run(meshes.trained, [kind], timeout=120.0):
        same_run(result, alone)
        assert result["norms"] == pytest.approx(alone["norms"], rel=1e-4)


@pytest.mark.thorough
def test_checkpoints_go_from_mesh_to_mesh_bit_for_bit(four, tmp_path):
    """4 to 2 x 2 and back, and through all the others: nothing is computed in between, so nothing may change."""
    kinds = ["fsdp 4", "fsdp 2 x tp 2", "fsdp 4", *(kind for kind in AXES if kind != "fsdp 4"), "fsdp 4"]
    for states in four.run(meshes.through_checkpoints, kinds, tmp_path, timeout=240.0):
        assert states[0]["head.weight exp_avg"].abs().max() > 0
        for before, after in itertools.pairwise(states):
            assert before.keys() == after.keys()
            for name, value in before.items():
                assert torch.equal(after[name], value), name


@pytest.mark.thorough
def test_a_run_goes_on_on_another_mesh(four, alone, tmp_path):
    for result in four.run(meshes.trained, ["fsdp 4", "fsdp 2 x tp 2", "fsdp 4"], tmp_path, timeout=240.0):
        same_run(result, alone)


# ---- cut by hand

CUT = re.escape("layers.0.ffn.w1.weight is [24, 32], and the model's is [48, 32]: a part that was cut by hand.")


def cut_by_hand():
    model = plain()
    w1 = model.layers["0"].ffn.w1
    w1.weight = nn.Parameter(w1.weight.detach().chunk(2)[0])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


@pytest.mark.parametrize("what", ["init", "perturb", "check", "clip", "culprits", "save", "load"])
def test_a_part_cut_by_hand_is_refused(tmp_path, what):
    def job(group):
        model = cut_by_hand()
        store, optimizer = Checkpoints(tmp_path, group), adamw(model, CONFIG)
        {
            "init": lambda: init_weights(model, 0),
            "perturb": lambda: perturb(model, 2**-9, 0),
            "check": lambda: health.check(torch.zeros(()), model, group).read(),
            "clip": lambda: health.clip(model, 2.0, 1.0),
            "culprits": lambda: health.culprits(model),
            "save": lambda: store.save(1, model, optimizer, {}),
            "load": lambda: store.load(model, optimizer),
        }[what]()

    with pytest.raises(LabError, match=CUT):
        run_ranks(job, size=1, backend="threads", timeout=60.0)
    assert not list(tmp_path.iterdir())


def test_a_part_cut_by_hand_and_then_by_fsdp_is_refused(four):
    for text in four.run(meshes.cut_before_fsdp, timeout=120.0):
        assert "a part that was cut by hand" in text and text.startswith("head.weight is [")


def test_what_is_whole_passes():
    refuse_hand_sharded(plain())
    refuse_hand_sharded(Transformer(CONFIG.resolved_model, layers=range(1, 2)))
    refuse_hand_sharded(nn.Linear(3, 5))  # no ModelConfig: nothing to hold it against
    biased = Transformer(CONFIG.resolved_model, linear=lambda name, i, o: nn.Linear(i, o))
    refuse_hand_sharded(biased)
    biased.head.bias = nn.Parameter(torch.zeros(3))
    with pytest.raises(LabError, match=r"head.bias is \[3\], and the model's is \[259\]"):
        refuse_hand_sharded(biased)
