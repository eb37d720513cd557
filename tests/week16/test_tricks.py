"""Section 13's trainings: what each arm converts, that runs are paired, how they are judged, and the record."""

from collections import Counter

import pytest

from labkit.model.decoder import Transformer
from week16_fp8.emulated import EmulatedLinear
from week16_fp8.given import pictures, tricks

SHORT = tricks.SIZE._replace(steps=2, every=1, batch=2, looks=1)


@pytest.mark.parametrize(
    "arm, many", [("FP32", 0), ("MXFP8", 14), ("NVFP4, last block in FP32", 7), ("FP8, scale 1", 14)]
)
def test_an_arm_converts_the_blocks_and_not_the_head(arm, many):
    model = tricks.converted(Transformer(tricks.SIZE.model), arm)
    kinds = Counter(type(module).__name__ for module in model.modules() if hasattr(module, "in_features"))
    assert kinds["Linear"] == 15 - many and sum(kinds.values()) == 15
    first = model.get_submodule("layers.0.ffn.w1")
    assert isinstance(first, EmulatedLinear) == (many > 0 and arm != tricks.CONTROL)


def test_runs_differ_by_their_seed_alone():
    assert tricks.train("NVFP4", 1, SHORT) == tricks.train("NVFP4", 1, SHORT) != tricks.train("NVFP4", 2, SHORT)
    plain, none = (tricks.train(arm, 1, SHORT) for arm in ("FP32", "NVFP4, no trick"))
    assert plain[2] != none[2] == pytest.approx(plain[2], rel=0.02)


def test_judged_by_the_rule_of_lab_compare(tmp_path):
    def runs(*gaps):
        return [dict.fromkeys(range(1, 11), 3.0 * (1 + gap / 100)) for gap in gaps]

    found = tricks.verdicts({
        "FP32": runs(0.0, 0.01, -0.01, 0.0), "MXFP8": runs(0.02, 0.01), "NVFP4": runs(0.6, 0.62), tricks.CONTROL: runs(9)
    })  # fmt: skip
    assert {name: one.word for name, one in found.items()} == {
        "MXFP8": "same", "NVFP4": "different", tricks.CONTROL: "different"
    }  # fmt: skip
    assert found["NVFP4"].gap == pytest.approx(0.61, abs=0.01)
    picture = pictures.gaps(found, tmp_path)
    assert "NVFP4 different, +0.61 %" in picture.alt and picture.png.exists()


def test_the_record_has_every_arm_and_could_say_no():
    runs = tricks.recorded()
    assert {arm: len(some) for arm, some in runs.items()} == {arm: tricks.RUNS.get(arm, 2) for arm in tricks.ARMS}
    found = tricks.verdicts(runs)
    assert found[tricks.CONTROL].word == "different" and found["FP8, one scale"].word == "same"
