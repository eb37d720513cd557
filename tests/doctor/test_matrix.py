"""The compatibility matrix: every combination has a word, every yes a proof, every no a reason that is enforced."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from labkit import cli
from labkit.errors import LabError
from labkit.precision import matrix
from labkit.precision.config import PrecisionConfig, PrecisionSpec
from labkit.precision.matrix import (
    FEATURES,
    GENERATIONS,
    NO,
    PARAMETERS,
    RECIPES,
    ROWS,
    SCHEDULE,
    UNTRIED,
    YES,
    cell,
    generation,
    reasons,
    refuse,
)
from labkit.precision.registry import availability, backends, get_backend
from labkit.precision.torchao_backend import gpu_can_fp8
from labkit.record.read import PACKED, read_run
from labkit.train.config import TrainConfig
from studies import matrix as matrix_try

ROOT = Path(matrix.__file__).parents[2]
CAPABILITIES = {
    "older": (7, 0),
    "Ampere": (8, 0),
    "Ada": (8, 9),
    "Hopper": (9, 0),
    "Blackwell": (10, 0),
    "Blackwell RTX": (12, 0),
}


def config(recipe, **more):
    backend, _, name = recipe.partition(" ")
    precision = {
        "backend": {"broken": "broken-e5m2"}.get(backend, backend),
        "recipe": None if name == "*" else name,
        "fused": more.pop("fused", False),
    }
    return TrainConfig(precision=precision, **more)


def cells():
    return [cell(recipe, column) for recipe in (*RECIPES, *ROWS) for column in matrix.COLUMNS if column != recipe]


def test_every_combination_has_a_word_and_a_reason():
    for found in cells():
        assert found.state in (YES, UNTRIED, NO) and found.why, found
        assert bool(found.proof) == (found.state == YES), found


def test_every_rule_is_used():
    rules = [line for line in matrix.TABLE.splitlines() if line and line[0] not in " #"]
    assert len(rules) == len(matrix.RULES)  # none that cannot be read
    deciding = {(c.recipe, c.column): next(r for r in matrix.RULES if r.speaks_of(c.recipe, c.column)) for c in cells()}
    assert set(map(id, deciding.values())) == set(map(id, matrix.RULES))


def test_every_backend_and_recipe_is_in_the_table():
    for name in backends():
        for recipe in get_backend(name).recipes:
            known, _ = matrix.wanted({"precision": {"backend": name, "recipe": recipe}})
            assert known in RECIPES, (name, recipe)
        assert matrix.wanted({"precision": {"backend": name}})[0] in RECIPES
        if name not in ("week16", "broken"):
            default = get_backend(name).recipes[0]
            assert matrix.wanted({"precision": {"backend": name}}) == matrix.wanted(
                {"precision": {"backend": name, "recipe": default}}
            )


def test_the_multiples_are_those_that_tests_of_the_backends_hold():
    found = {multiple: [recipe for recipe, m in RECIPES.items() if m == multiple] for multiple in (1, 16, 128)}
    assert found[1] == ["fp32 fp32", "bf16 bf16", "amp bf16", "amp fp16", "te bf16"] and found[128] == ["te block"]
    assert {matrix.multiple(name, recipe) for name in backends() for recipe in get_backend(name).recipes} == {
        1,
        16,
        128,
    }


def proof_shows(found):
    path = ROOT / found.proof
    if path.suffix == ".py":
        return path.is_file()
    if path.suffix == ".json":
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["kind"] == "tensor-parallel":
            return spread_shows(record, found)
        assert record["kind"] == "matrix" and record["generation"] == "Hopper" and record["versions"]["torch"]
        ways = [found.column] if found.column in FEATURES else []
        if found.recipe in ROWS:
            return any(e["ok"] and e["ways"] == [found.recipe, *ways] for e in record["tried"])
        return any(e["ok"] and e["recipe"] == found.recipe and e["ways"] == ways for e in record["tried"])
    if "-h200-8b/" in found.proof or found.proof.endswith("-two-stage"):
        return comparison_shows(json.loads((path / "run.json").read_text(encoding="utf-8")), found)
    packed = [file.with_name(file.name.removesuffix(PACKED)) for file in path.glob(f"*/*{PACKED}")]
    arms = [read_run(arm).run for arm in packed]
    size = 2 if found.column == "FSDP2" else 1
    return any(
        run["status"] == "finished" and run["world"]["size"] >= size and matrix.wanted(run["config"])[0] == found.recipe
        for run in arms
    )


def comparison_shows(record, found):
    """A comparison whose arms' own records were not kept: an arm of the recipe was timed, or its loss came out the
    same, on two ranks."""
    assert found.column == "FSDP2" and record["config"]["world_size"] >= 2 and record["status"] == "finished"
    results = record["results"]
    judged = results.get("verdict", {}).get("arms", {})
    done = {*results.get("speed", {}).get("arms", {}), *(arm for arm in judged if judged[arm]["word"] == "same")}
    configs = [record["config"]["arms"][arm]["train"] for arm in done]
    if found.recipe == PARAMETERS:
        return any(train["precision"].get("fp8_parameters") for train in configs)
    return any(matrix.wanted(train)[0] == found.recipe for train in configs)


def spread_shows(record, found):
    """Week 15's bench: on two ranks, and right to the format's rounding (FP8 has 3 bits, BF16 8)."""
    if found.column == "PP":
        return any(row["P"] > 1 and row["loss"] > 0 for row in record["pipeline"])
    by_te = "te.Linear" if found.recipe == "te bf16" else f"te.Linear, FP8 {found.recipe.partition(' ')[2]}"
    contender = "DTensor, plain" if found.recipe == "bf16 bf16" else by_te
    rows = [row for row in record["rows"] if row["contender"] == contender and row["N"] > 1 and row["what"] == "block"]
    return bool(rows) and all(0 < row["error"] < (0.15 if "FP8" in contender else 0.01) for row in rows)


@pytest.mark.parametrize("found", [c for c in cells() if c.state == YES], ids=lambda c: f"{c.recipe}-{c.column}")
def test_every_yes_has_a_proof_that_shows_it(found):
    if found.proof.startswith(("results/", "week15", "week16")) and not (ROOT / found.proof).exists():
        pytest.skip("the record is not in this tree")  # a student's tree leaves week 16's results out
    assert proof_shows(found), found


@pytest.mark.parametrize("recipe", [r for r in RECIPES if cell(r, "CPU").state == YES])
def test_yes_on_a_cpu_trains_here(recipe):
    """Forward and backward of a small linear, and finite: the proof that the table names for the CPU."""
    backend, _, name = recipe.partition(" ")
    backend = get_backend({"broken": "broken-e5m2"}.get(backend, backend))
    torch.manual_seed(0)
    dtype = torch.float32 if name == "fp32" else torch.bfloat16
    model = torch.nn.Sequential(torch.nn.Linear(32, 16, bias=False, dtype=dtype))
    backend.convert(model, PrecisionSpec(None if name == "*" else name, device="cpu"))
    x = torch.randn(16, 32, dtype=model[0].weight.dtype, requires_grad=True)
    with backend.autocast():
        y = model(x)
    y.float().square().sum().backward()
    assert torch.isfinite(x.grad).all() and x.grad.abs().sum() > 0 and backend.evidence(model)["converted"] == 1


def test_the_table_and_the_backends_refuse_the_same_on_a_cpu():
    for recipe in RECIPES:
        backend, _, name = recipe.partition(" ")
        if backend in ("week16",):
            continue
        backend = {"broken": "broken-e5m2"}.get(backend, backend)
        able = availability(backend, None if name == "*" else name, "cpu")
        assert able.ok == (cell(recipe, "CPU").state != NO), (recipe, able)


@pytest.mark.parametrize("column", CAPABILITIES)
def test_the_table_lets_no_gpu_through_that_the_backends_refuse(column, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: CAPABILITIES[column])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a GPU")
    for recipe in ("torchao tensorwise", "torchao rowwise", "torchao rowwise_with_gw_hp"):
        able = availability("torchao", recipe.split()[1], "cuda")
        assert able.ok == (cell(recipe, column).state != NO), (recipe, column, str(able))
    for recipe in ("te delayed", "te current"):
        assert gpu_can_fp8(torch.device("cuda")).ok == (cell(recipe, column).state != NO)
    assert (cell("te block", column).state != NO) == (CAPABILITIES[column] >= (9, 0))


# ---- enforced


def test_what_the_table_allows_is_not_refused():
    refuse(config("bf16 bf16", compile=True, activation_checkpointing="block"), (9, 0), world=8)
    refuse(config("te current", fused=True, compile=True), (9, 0))
    refuse(config("torchao tensorwise"), None, world=2)
    refuse({"precision": {"backend": "torchao", "recipe": "rowwise"}}, (9, 0))


@pytest.mark.parametrize(
    "asked, gpu, said",
    [
        (
            config("te current"),
            None,
            "te current and CPU do not go together: Transformer Engine has no kernels for a CPU",
        ),
        (config("te block"), (8, 9), "te block and Ada do not go together: block scaling needs Hopper"),
        (config("torchao rowwise"), (8, 9), "torchao rowwise and Ada do not go together"),
        (
            config("torchao tensorwise"),
            (8, 6),
            "torchao tensorwise and Ampere do not go together: FP8 products need units",
        ),
        (config("bf16 bf16"), (7, 5), "bf16 bf16 and older do not go together: GPUs before Ampere have no BF16 units"),
        (config("torchao tensorwise", fused=True), (9, 0), "torchao tensorwise and fused do not go together"),
    ],
)
def test_what_it_forbids_is_refused_with_the_reason(asked, gpu, said):
    with pytest.raises(LabError) as error:
        refuse(asked, gpu)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["tp", "ep", "pp"])
def test_what_the_trainer_has_not_a_configuration_cannot_ask_for(key):
    runs = {recipe for recipe in RECIPES if cell(recipe, key.upper()).state == YES}
    by_hand = {"fp32 fp32", "bf16 bf16"}
    assert runs == {"tp": by_hand | {"te bf16", "te delayed", "te current"}, "ep": set(), "pp": by_hand}[key]
    with pytest.raises(LabError, match=f"'{key}' is not a known key"):
        TrainConfig(**{key: 2})


def test_every_no_is_enforced():
    across = {SCHEDULE: {"schedule": {"bf16_first": 1}}, PARAMETERS: {"fp8_parameters": True}}
    keys = {
        "fused": {"precision": {"fused": True}},
        SCHEDULE: {"precision": across[SCHEDULE]},
        PARAMETERS: {"precision": across[PARAMETERS]},
    }
    for found in cells():
        if found.state != NO or found.column in ("TP", "EP", "PP"):  # no configuration can ask for these
            continue
        backend, _, name = ("te block" if found.recipe in ROWS else found.recipe).partition(" ")
        asked = {
            "precision": {
                "backend": {"broken": "broken-stale"}.get(backend, backend),
                "recipe": None if name == "*" else name,
                **across.get(found.recipe, {}),
            }
        }
        if found.column in FEATURES:
            asked = {
                **asked,
                **keys[found.column],
                "precision": {**asked["precision"], **keys[found.column].get("precision", {})},
            }
            assert any(found.why in reason for reason in reasons(asked, (9, 0))), found
        else:
            assert any(found.why in reason for reason in reasons(asked, CAPABILITIES.get(found.column))), found


@pytest.mark.parametrize(
    "precision, more, gpu, said",
    [
        (
            {"backend": "bf16", "schedule": {"bf16_first": 2}},
            {},
            (9, 0),
            "bf16 bf16 and schedule do not go together: there is no FP8 phase to switch to",
        ),
        (
            {"backend": "te", "recipe": "current", "fp8_parameters": True},
            {},
            (9, 0),
            "te current and FP8 params do not go together: FP8 parameters need power-of-two scales",
        ),
        (
            {"backend": "te", "recipe": "block", "fp8_parameters": True, "fused": True},
            {},
            (9, 0),
            "FP8 params and fused do not go together: a fused module joins the weights",
        ),
        (
            {"backend": "te", "recipe": "block", "fp8_parameters": True, "schedule": {"bf16_first": 0.1}},
            {},
            (9, 0),
            "schedule and FP8 params do not go together: a BF16 phase would multiply weights that are FP8 all the same",
        ),
        (
            {"backend": "te", "recipe": "block", "fp8_parameters": True},
            {},
            (8, 9),
            "te block and Ada do not go together",
        ),
        ({"backend": "emulated", "schedule": {"bf16_last": 1}}, {}, (7, 0), "GPUs before Ampere have no BF16 units"),
    ],
)
def test_schedule_and_fp8_parameters_are_refused_with_one_reason(precision, more, gpu, said):
    for asked in (TrainConfig(precision=precision, **more), {"precision": precision}):
        (reason,) = reasons(asked, gpu)
        assert said in reason
        with pytest.raises(LabError, match="do not go together"):
            refuse(asked, gpu)


def test_schedule_and_fp8_parameters_that_may_run():
    for world, more in ((1, {}), (8, dict(compile=True, activation_checkpointing="block"))):
        for precision in (
            {"backend": "te", "recipe": "delayed", "fused": True, "schedule": {"bf16_first": 0.1}},
            {"backend": "torchao", "schedule": {"bf16_last": 5}},
            {"backend": "emulated", "recipe": "block", "fp8_parameters": True},
        ):
            refuse(TrainConfig(precision=precision, **more), (9, 0), world)
    refuse(TrainConfig(precision={"backend": "te", "recipe": "block", "fp8_parameters": True}, compile=True), (9, 0), 2)


def test_of_gpus_hopper_alone_is_called_shown():
    gpus = [name for name in GENERATIONS if name not in ("CPU", "Hopper")]
    assert all(cell(row, gpu).state != YES for row in ROWS for gpu in gpus)
    for found in cells():
        if (found.recipe in ROWS or found.column in ROWS) and found.state == YES:
            shown = ("tests/train/", "week16_fp8/results/h200-matrix-", "week16_fp8/results/2026-11-26-h200-two-stage")
            assert found.proof.startswith(shown), found


def test_several_conflicts_are_all_told():
    found = reasons(
        {"precision": {"backend": "torchao", "recipe": "rowwise", "fused": True, "fp8_parameters": True}}, (8, 9)
    )
    assert len(found) == 4


def test_unknown_recipes_and_generations():
    with pytest.raises(LabError, match="no recipe 'fp4 nv'"):
        refuse({"precision": {"backend": "fp4", "recipe": "nv"}}, None)
    with pytest.raises(LabError, match="no recipe 'te delaid'"):
        refuse({"precision": {"backend": "te", "recipe": "delaid"}}, None)
    with pytest.raises(KeyError):
        cell("bf16 bf16", "Hoper")


def test_generations():
    machines = (None, (6, 1), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 1))
    assert [generation(machine) for machine in machines] == [
        "CPU",
        "older",
        "older",
        "Ampere",
        "Ampere",
        "Ada",
        "Hopper",
        "Blackwell",
        "Blackwell",
        "Blackwell RTX",
    ]
    assert matrix.this_gpu("cpu") is None


def test_the_oldest_gpu_of_a_machine_decides(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda k: [(9, 0), (8, 0)][k])
    assert matrix.this_gpu("cuda") == (8, 0)


def test_a_config_without_fields_of_the_future_is_understood():
    assert matrix.wanted(TrainConfig(), world=1) == ("bf16 bf16", [])
    assert matrix.wanted(TrainConfig(compile=True, precision=PrecisionConfig(backend="te", fused=True)), world=4) == (
        "te current",
        ["FSDP2", "compile", "fused"],
    )


# ---- printed and tried


def test_the_doctor_prints_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    cli.app(["doctor", "--matrix"], standalone_mode=False)
    out = capsys.readouterr().out
    for word in (
        *(recipe.removesuffix(" *") for recipe in RECIPES),
        *FEATURES[:5],
        *list(GENERATIONS)[1:5],
        *ROWS.values(),
    ):
        assert word in out
    for found in cells():
        assert found.state == YES or " ".join(found.why.split())[:60] in " ".join(out.split()), found.why
    assert "CPU*" in out  # this machine's column


def test_the_doctor_prints_it_as_json(capsys):
    cli.app(["doctor", "--matrix", "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found["here"] in GENERATIONS and set(found["recipes"]) == set(RECIPES) and set(found["with"]) == set(ROWS)
    assert found["with"][PARAMETERS]["cells"]["fused"]["state"] == NO
    block = found["recipes"]["te block"]
    assert block["cells"]["Ada"]["state"] == NO and block["multiple"] == 128


def test_three_that_do_not_go_together_are_refused():
    """Each pair of them goes: the record shows it, and that the three do not."""
    asked = {
        "precision": {"backend": "te", "recipe": "block", "fp8_parameters": True},
        "activation_checkpointing": "block",
    }
    with pytest.raises(LabError, match="te block, FP8 params and checkpointing do not go together: in backward"):
        refuse(asked, (9, 0))
    refuse({**asked, "activation_checkpointing": "none"}, (9, 0))
    refuse({**asked, "precision": {"backend": "te", "recipe": "block"}}, (9, 0))
    refuse({**asked, "precision": {**asked["precision"], "backend": "emulated"}}, (9, 0))
    path = ROOT / "week16_fp8" / "results" / "h200-matrix-3.json"
    if path.exists():
        failed = [entry for entry in json.loads(path.read_text())["tried"] if not entry["ok"]]
        assert [(e["recipe"], e["ways"]) for e in failed] == [("te block", [PARAMETERS, "checkpointing"])]


def test_what_is_tried_is_what_is_allowed():
    tried = matrix_try.combinations((9, 0))
    assert ("te block", ("compile", "checkpointing", "fused")) in tried and ("torchao rowwise", ("fused",)) not in tried
    assert {("te delayed", (SCHEDULE, "fused")), ("te block", (PARAMETERS, "compile"))} <= set(tried)
    assert ("te block", (PARAMETERS, "checkpointing")) not in tried
    assert ("emulated block", (PARAMETERS, "checkpointing")) in matrix_try.combinations(None)
    assert ("te block", (PARAMETERS, "fused")) not in tried and ("bf16 bf16", (SCHEDULE,)) not in tried
    assert not any(recipe.startswith("te ") for recipe, _ in matrix_try.combinations(None))
    assert len(tried) == len(set(tried))
    for recipe, ways in tried:
        assert matrix.wanted(matrix_try.config_of(recipe, ways))[0] == recipe


@pytest.mark.thorough
def test_trying_on_this_cpu_writes_a_record(tmp_path, capsys):
    out = tmp_path / "record" / "matrix.json"
    assert (
        matrix_try.main(
            ["--device", "cpu", "--only", "emulated tensorwise", "--ways", "plain,checkpointing", "--out", str(out)]
        )
        == 0
    )
    record = json.loads(out.read_text())
    first = record["tried"][0]
    assert (first["recipe"], first["ways"], first["ok"]) == ("emulated tensorwise", [], True)
    assert {tuple(entry["ways"]) for entry in record["tried"]} == {(), ("checkpointing",)}
    assert {entry["fp8_steps"] for entry in record["tried"]} == {2}
    assert record["generation"] == "CPU" and record["finished"] and all(e["converted"] == 14 for e in record["tried"])
    with pytest.raises(LabError, match="no recipe 'te blok'"):
        matrix_try.main(["--device", "cpu", "--only", "te blok", "--out", str(out)])
    with pytest.raises(LabError, match="no way 'FP8'; the valid ones are: compile, checkpointing, fused, schedule, "):
        matrix_try.main(["--device", "cpu", "--ways", "FP8", "--out", str(out)])


@pytest.mark.thorough
def test_trying_the_schedule_and_fp8_parameters_on_this_cpu(tmp_path, capsys):
    out = tmp_path / "matrix.json"
    assert (
        matrix_try.main(
            ["--device", "cpu", "--only", "emulated block", "--ways", "schedule,FP8 params", "--out", str(out)]
        )
        == 0
    )
    ran = {tuple(entry["ways"]): entry for entry in json.loads(out.read_text())["tried"]}
    assert ran[(PARAMETERS,)]["fp8_steps"] == 2 and ran[(SCHEDULE,)]["fp8_steps"] == 1 and len(ran) == 2


def test_a_combination_that_fails_is_recorded_and_the_rest_goes_on(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(matrix_try, "combinations", lambda gpu: [("fp32 fp32", ()), ("bf16 bf16", ())])
    broken = dict(matrix_try.TRAIN, seq_len=4096)  # longer than the model's max_seq_len
    real = matrix_try.config_of
    monkeypatch.setattr(
        matrix_try,
        "config_of",
        lambda recipe, ways: {
            **real(recipe, ways),
            **({"seq_len": broken["seq_len"]} if recipe == "fp32 fp32" else {}),
        },
    )
    assert matrix_try.main(["--device", "cpu", "--out", str(tmp_path / "m.json")]) == 1
    first, second = json.loads((tmp_path / "m.json").read_text())["tried"]
    assert not first["ok"] and "max_seq_len" in first["why"] and second["ok"]
