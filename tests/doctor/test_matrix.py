"""The compatibility matrix: every combination has a word, every yes a proof, every no a reason that is enforced."""

import json
from pathlib import Path

import pytest
import torch

from labkit import cli
from labkit.errors import LabError
from labkit.precision import matrix
from labkit.precision.base import gpu_has
from labkit.precision.config import PrecisionConfig, PrecisionSpec
from labkit.precision.matrix import COLUMNS, GENERATIONS, ROWS, cell, conflicts, generation, refuse, requested
from labkit.precision.recipes import (
    ACROSS,
    FEATURES,
    NO,
    OTHERWISE,
    PARAMETERS,
    SCHEDULE,
    SETTINGS,
    UNTRIED,
    YES,
    Recipe,
)
from labkit.precision.registry import availability, backends, get_backend
from labkit.record.read import PACKED, read_run
from labkit.train.config import TrainConfig

ROOT = Path(matrix.__file__).parents[2]
CAPABILITIES = {name: lowest for name, lowest in GENERATIONS.items() if lowest}


def cells():
    return [cell(row, column) for row in (*ROWS, *ACROSS) for column in COLUMNS if column != row]


def test_every_combination_has_a_word_and_a_reason():
    for found in cells():
        assert found.state in (YES, UNTRIED, NO), found
        assert found.proof if found.state == YES else found.why, found  # what shows it, or why not


def test_nothing_is_declared_of_a_column_that_is_not_there():
    assert set(OTHERWISE) == set(COLUMNS) and set(SETTINGS) == set(ACROSS)
    for entry in (*ROWS.values(), *SETTINGS.values()):
        assert set(entry.ways) <= set(COLUMNS) and all(set(apart) <= set(FEATURES) for apart in entry.apart)


def test_of_a_recipe_that_declares_nothing_nothing_is_shown(monkeypatch):
    """A new recipe of a known backend: nobody has tried it, whatever its neighbours have shown."""
    monkeypatch.setitem(matrix.ROWS, "torchao mxfp8", Recipe({}))
    found = [cell("torchao mxfp8", column) for column in COLUMNS]
    assert {c.state for c in found} == {UNTRIED, NO} and cell("torchao mxfp8", "Hopper").state == UNTRIED
    assert {c.column for c in found if c.state == NO} == {"TP", "EP", "PP", "fused", SCHEDULE, PARAMETERS}


def test_every_backend_and_recipe_is_in_the_table():
    for name in backends():
        default, *others = get_backend(name).recipes
        rows = [requested({"precision": {"backend": name, "recipe": recipe}})[0] for recipe in (None, default, *others)]
        assert set(rows) <= set(ROWS) and rows[0] == rows[1], name


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
        if found.recipe in ACROSS:
            return any(e["ok"] and e["ways"] == [found.recipe, *ways] for e in record["tried"])
        return any(e["ok"] and e["recipe"] == found.recipe and e["ways"] == ways for e in record["tried"])
    packed = [file.with_name(file.name.removesuffix(PACKED)) for file in path.glob(f"*/*{PACKED}")]
    if not packed:
        return comparison_shows(json.loads((path / "run.json").read_text(encoding="utf-8")), found)
    arms = [read_run(arm).run for arm in packed]
    size = 2 if found.column == "FSDP2" else 1
    return any(
        run["status"] == "finished" and run["world"]["size"] >= size and requested(run["config"])[0] == found.recipe
        for run in arms
    )


def comparison_shows(record, found):
    """A comparison whose arms' own records were not kept: an arm of the recipe was timed or trained to its end, on two ranks."""
    assert found.column == "FSDP2" and record["config"]["world_size"] >= 2 and record["status"] == "finished"
    results = record["results"]
    trained = {
        arm for arm, row in results.get("arms", {}).items() if row["status"] == "finished" and row.get("of") is None
    }
    configs = [record["config"]["arms"][arm]["train"] for arm in {*results.get("speed", {}).get("arms", {}), *trained}]
    if found.recipe == PARAMETERS:
        return any(train["precision"].get("fp8_parameters") for train in configs)
    return any(requested(train)[0] == found.recipe for train in configs)


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


@pytest.mark.parametrize("recipe", [r for r in ROWS if cell(r, "CPU").state == YES])
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
    for recipe in ROWS:
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
    for recipe in ("te delayed", "te current", "te block"):
        assert gpu_has(ROWS[recipe].needs, torch.device("cuda")).ok == (cell(recipe, column).state != NO)


# ---- enforced

FP8_PARAMETERS = {"backend": "te", "recipe": "block", "fp8_parameters": True}
RECOMPUTED = {"activation_checkpointing": "block"}


@pytest.mark.parametrize(
    "precision, more, gpu, world",
    [
        ({"backend": "bf16"}, {"compile": True, **RECOMPUTED}, (9, 0), 8),
        ({"backend": "te", "fused": True}, {"compile": True}, (9, 0), 1),
        ({"backend": "torchao"}, {}, None, 2),
        ({"backend": "torchao", "recipe": "rowwise"}, {}, (9, 0), 1),
        ({"backend": "te", "recipe": "delayed", "fused": True, "schedule": {"bf16_first": 0.1}}, RECOMPUTED, (9, 0), 8),
        ({"backend": "torchao", "schedule": {"bf16_last": 5}}, {"compile": True, **RECOMPUTED}, (9, 0), 8),
        ({**FP8_PARAMETERS, "backend": "emulated"}, {"compile": True, **RECOMPUTED}, (9, 0), 8),
        (FP8_PARAMETERS, {"compile": True}, (9, 0), 2),
        ({"backend": "te", "recipe": "block"}, RECOMPUTED, (9, 0), 1),
    ],
)
def test_what_the_table_allows_is_not_refused(precision, more, gpu, world):
    refuse(TrainConfig(precision=precision, **more), gpu, world)
    refuse({"precision": precision, **more}, gpu, world)


@pytest.mark.parametrize(
    "precision, more, gpu, who",
    [
        ({"backend": "te"}, {}, None, ("te current", "CPU")),
        ({"backend": "te", "recipe": "block"}, {}, (8, 9), ("te block", "Ada")),
        ({"backend": "torchao", "recipe": "rowwise"}, {}, (8, 9), ("torchao rowwise", "Ada")),
        ({"backend": "torchao"}, {}, (8, 6), ("torchao tensorwise", "Ampere")),
        ({"backend": "bf16"}, {}, (7, 5), ("bf16 bf16", "older")),
        ({"backend": "amp", "recipe": "fp16"}, {}, (6, 1), ("amp fp16", "older")),
        ({"backend": "torchao", "fused": True}, {}, (9, 0), ("torchao tensorwise", "fused")),
        ({"backend": "bf16", "schedule": {"bf16_first": 2}}, {}, (9, 0), ("bf16 bf16", SCHEDULE)),
        ({**FP8_PARAMETERS, "recipe": "current"}, {}, (9, 0), ("te current", PARAMETERS)),
        ({**FP8_PARAMETERS, "fused": True}, {}, (9, 0), (PARAMETERS, "fused")),
        ({**FP8_PARAMETERS, "schedule": {"bf16_first": 0.1}}, {}, (9, 0), (SCHEDULE, PARAMETERS)),
        (FP8_PARAMETERS, {}, (8, 9), ("te block", "Ada")),
        ({"backend": "emulated", "schedule": {"bf16_last": 1}}, {}, (7, 0), ("emulated tensorwise", "older")),
        # Each two of these three go together: the record shows it, and that the three do not.
        (FP8_PARAMETERS, RECOMPUTED, (9, 0), ("te block", PARAMETERS, "checkpointing")),
    ],
)
def test_what_it_forbids_is_refused_for_one_reason(precision, more, gpu, who):
    for config in (TrainConfig(precision=precision, **more), {"precision": precision, **more}):
        (found,) = conflicts(config, gpu)
        assert found.who == who and all(word in str(found) for word in (*who, found.why))
        with pytest.raises(LabError) as error:
            refuse(config, gpu)
        assert str(error.value) == str(found) and str(found).isprintable()


def test_of_the_record_what_failed_is_what_is_refused():
    path = ROOT / "week16_fp8" / "results" / "h200-matrix-3.json"
    if path.exists():  # a student's tree has no such records
        failed = [entry for entry in json.loads(path.read_text())["tried"] if not entry["ok"]]
        assert [(e["recipe"], e["ways"]) for e in failed] == [("te block", [PARAMETERS, "checkpointing"])]


@pytest.mark.parametrize("key", ["tp", "ep", "pp"])
def test_what_the_trainer_has_not_a_configuration_cannot_ask_for(key):
    runs = {recipe for recipe in ROWS if cell(recipe, key.upper()).state == YES}
    by_hand = {"fp32 fp32", "bf16 bf16"}
    assert runs == {"tp": by_hand | {"te bf16", "te delayed", "te current"}, "ep": set(), "pp": by_hand}[key]
    with pytest.raises(LabError, match=f"'{key}' is not a known key"):
        TrainConfig(**{key: 2})


def test_every_no_is_enforced():
    settings = {"fused": {"fused": True}, SCHEDULE: {"schedule": {"bf16_first": 1}}}
    settings[PARAMETERS] = {"fp8_parameters": True}
    for found in cells():
        if found.state != NO or found.column in ("TP", "EP", "PP"):  # no configuration can request these
            continue
        backend, _, name = ("te block" if found.recipe in ACROSS else found.recipe).partition(" ")
        precision = {"backend": backend, "recipe": None if name == "*" else name}
        precision |= settings.get(found.recipe, {}) | settings.get(found.column, {})
        gpu = CAPABILITIES.get(found.column) if found.column in GENERATIONS else (9, 0)
        assert found.why in [c.why for c in conflicts({"precision": precision}, gpu)], found


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
        *("CPU", "older", "older", "Ampere", "Ampere", "Ada", "Hopper", "Blackwell", "Blackwell", "Blackwell RTX")
    ]
    assert matrix.this_gpu("cpu") is None


def test_the_oldest_gpu_of_a_machine_decides(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda k: [(9, 0), (8, 0)][k])
    assert matrix.this_gpu("cuda") == (8, 0)


def test_a_config_without_fields_of_the_future_is_understood():
    assert requested(TrainConfig(), world=1) == ("bf16 bf16", [])
    assert requested(TrainConfig(compile=True, precision=PrecisionConfig(backend="te", fused=True)), world=2) == (
        "te current",
        ["FSDP2", "compile", "fused"],
    )


# ---- printed and tried


def test_the_doctor_prints_it(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    cli.app(["doctor", "--matrix"], standalone_mode=False)
    out = capsys.readouterr().out
    recipes = [recipe.removesuffix(" *") for recipe in ROWS]
    for word in (*recipes, *FEATURES[:5], *list(GENERATIONS)[1:5], *ACROSS.values()):
        assert word in out
    for found in cells():
        assert found.state == YES or " ".join(found.why.split())[:60] in " ".join(out.split()), found.why
    assert "CPU*" in out  # this machine's column
