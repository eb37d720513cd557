"""What all backends share: conversion, skip lists, reports, evidence, availability; and the errors, a sentence each."""

import re
import sys

import pytest
import torch
from torch import nn

from labkit.errors import LabError, in_words
from labkit.model.decoder import Transformer, init_weights
from labkit.precision import base, student
from labkit.precision.recipes import FP8_ROWS, FP8_UNITS, INSTALL_TE
from labkit.precision.registry import availability, backends, get_backend
from labkit.precision.torchao_backend import INSTALL
from tests.precision.precision_jobs import LINEARS, MODEL, convert, decoder, loss_of, tokens


@pytest.fixture
def hide():
    """hide(package): as if it had never been imported. What is imported in its place is forgotten after the test."""
    hidden, before = [], dict(sys.modules)

    def of(package):
        return [n for n in sys.modules if n == package or n.startswith(package + ".")]

    def hide(package):
        hidden.append(package)
        for name in of(package):
            del sys.modules[name]

    yield hide
    for package in hidden:
        for name in of(package):
            del sys.modules[name]
        sys.modules.update({n: m for n, m in before.items() if n == package or n.startswith(package + ".")})


HERE = [(name, None) for name in ("bf16", "fp32", "emulated", "broken-e5m2")] + [("broken", "stale")]
HERE += [("torchao", recipe) for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp")]


@pytest.mark.parametrize("name, recipe", HERE)
def test_conversion_keeps_the_weights_and_reports(name, recipe):
    model, backend = decoder(), get_backend(name)
    before = dict(model.named_parameters())
    report = convert(backend, model, recipe, ["head"])
    after = dict(model.named_parameters())
    assert list(after) == list(before) and all(after[n] is before[n] for n in before)  # the very same Parameters
    assert len(report.converted) == LINEARS and report.converted[0] == "layers.0.attn.wq"
    assert report.skipped == {"head": "named by 'head' in the skip list"}
    assert (report.backend, report.recipe) == (name, recipe or backend.recipes[0])
    evidence = backend.evidence(model)
    assert evidence["converted"] == LINEARS and sum(evidence["module_types"].values()) == LINEARS + 1
    assert evidence["module_types"].get(report.module_type) == (LINEARS + 1 if name in ("bf16", "fp32") else LINEARS)
    assert not any(m._forward_hooks for m in model.modules())


def test_evidence_counts_what_is_there_and_not_what_was_promised():
    model, backend = decoder(), get_backend("emulated")
    convert(backend, model)
    model.layers["0"].attn.wq = nn.Linear(32, 32, bias=False)  # somebody put a plain one back
    assert backend.evidence(model)["converted"] == LINEARS  # 14, and the head, less one
    assert backend.evidence(model)["module_types"]["torch.nn.modules.linear.Linear"] == 1


SKIPS = {"": 15, "head": 14, "head layers.0": 7, "head wo": 12, "head ffn.w2": 12, "head layers.*.ffn.w2": 12}
SKIPS["head layers.1.attn ffn"] = 4


@pytest.mark.parametrize("skip, left", SKIPS.items())
def test_skip_patterns(skip, left):
    report = convert(get_backend("emulated"), decoder(), None, skip.split())
    assert len(report.converted) == left and len(report.converted) + len(report.skipped) == LINEARS + 1


def test_tied_head_stays_tied_and_training_mode_is_kept():
    config = MODEL.replace(tie_embeddings=True)
    model = init_weights(Transformer(config), 0).eval()
    convert(get_backend("emulated"), model)
    assert model.head.weight is model.tok_embed.weight
    assert not any(m.training for m in model.modules())


@pytest.mark.parametrize(
    "name, recipe, skip, model, sentence",
    [
        ("torchoa", None, [], decoder, "no precision backend 'torchoa'; did you mean 'torchao'?"),
        ("torchao", "rowise", [], decoder, "no recipe 'rowise'; did you mean 'rowwise'?"),
        ("te", "curent", [], decoder, "no recipe 'curent'; did you mean 'current'?"),
        ("emulated", None, ["haed"], decoder, "'haed', but the model has no such module; did you mean 'head'?"),
        ("emulated", None, ["*"], decoder, "finds nothing to convert: the skip list ['*'] names all 15"),
        ("emulated", None, [], nn.ReLU, "finds nothing to convert: the model has no nn.Linear"),
    ],
)
def test_errors(name, recipe, skip, model, sentence):
    with pytest.raises(LabError, match=f"^.*{re.escape(sentence)}.*$"):
        convert(get_backend(name), model(), recipe, skip)


def test_an_fp8_model_is_not_converted_twice():
    model, backend = decoder(), get_backend("emulated")
    convert(backend, model, None, ["head"])
    with pytest.raises(LabError, match="take a fresh one"):
        convert(backend, decoder())
    with pytest.raises(LabError, match="nothing to convert"):
        convert(get_backend("torchao"), model, None, ["head"])


def test_dims_that_do_not_divide_are_all_named():
    model = Transformer(MODEL.replace(d_ffn=72))
    with pytest.raises(LabError, match="^.* multiples of 16.*$") as error:
        convert(get_backend("torchao"), model, "tensorwise", ["head"])
    ffn = [f"layers.{n}.ffn.{w}" for n in (0, 1) for w in ("w1 (32 -> 72)", "w2 (72 -> 32)", "w3 (32 -> 72)")]
    assert sorted(re.findall(r"[\w.]+ \(\d+ -> \d+\)", str(error.value))) == ffn
    assert {type(m) for m in model.modules() if hasattr(m, "in_features")} == {nn.Linear}  # nothing was touched
    convert(get_backend("bf16"), model)  # BF16 takes any dims


def test_every_backend_answers_for_itself():
    for name in backends():
        able = availability(name)
        assert able.ok or able.reason, name
        assert "\n" not in str(able)
    assert all(availability(name).ok for name, _ in HERE if not torch.cuda.is_available())
    for able in (availability("torchoa"), availability("torchao", "rowise")):
        assert not able.ok and able.reason and not able.fix, "its own sentence, and no damaged installation"


@pytest.mark.parametrize(
    "body, shown",
    [
        ("raise OSError('libcuda.so.1: cannot open')", "does not import (OSError: libcuda.so.1: cannot open)"),
        ("import sys; sys.exit(3)", "does not import (SystemExit: 3)"),
        ("import no_such_part", "does not import (ModuleNotFoundError: No module named 'no_such_part')"),
        ("", "has no "),
    ],
)
@pytest.mark.parametrize("package, backend", [("transformer_engine/pytorch", "te"), ("torchao/float8", "torchao")])
def test_whatever_the_import_does_is_shown_in_words(body, shown, package, backend, tmp_path, monkeypatch, hide):
    folder = tmp_path / package
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text(body)
    hide(folder.parent.name)
    monkeypatch.syspath_prepend(tmp_path)
    able = availability(backend)
    assert not able.ok and shown in able.reason and able.fix
    with pytest.raises(LabError, match="cannot run here"):
        convert(get_backend(backend), decoder())


@pytest.mark.parametrize("package, backend", [("transformer_engine", "te"), ("torchao", "torchao")])
def test_a_package_that_is_not_installed(package, backend, monkeypatch, hide):
    hide(package)
    monkeypatch.setitem(sys.modules, package, None)  # makes import raise ModuleNotFoundError
    able = availability(backend)
    assert not able.ok and "is not installed" in able.reason
    assert able.fix == {"te": INSTALL_TE, "torchao": INSTALL}[backend]


def test_a_gpu_that_is_too_old_or_broken(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA A10")
    able = availability("torchao", "tensorwise")
    assert (able.ok, able.fix) == (False, FP8_UNITS.fix)
    assert able.reason == f"NVIDIA A10 has compute capability 8.6, and {FP8_UNITS.why}"
    assert availability("torchao", "tensorwise", "cpu").ok and availability("emulated").ok
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 9))
    assert availability("torchao", "tensorwise").ok and availability("torchao", "rowwise").fix == FP8_ROWS.fix

    def broken(device=None):
        raise fault

    fault = RuntimeError("CUDA driver initialization failed")
    monkeypatch.setattr(torch.cuda, "get_device_capability", broken)
    able = availability("torchao")
    assert not able.ok and in_words(fault) in able.reason and able.fix


NOT_FINISHED = "your FP8 linear is not finished: arm skipped"
GOOD = """
import torch
class FP8Linear(torch.nn.Linear):
    def forward(self, x):
        assert x.max().item() is not None
        return super().forward(x)
"""
BODY = GOOD[GOOD.index("assert") :]
HOLE = "raise NotImplementedError('Task 16.4')"


@pytest.mark.parametrize(
    "capability, able, kind",
    [((9, 0), True, "TensorCoreLinear"), ((9, 0), False, "FP8Linear"), ((8, 0), True, "FP8Linear")],
)
def test_the_students_linear_multiplies_in_fp8_where_the_gpu_can(capability, able, kind, monkeypatch):
    """A stand-in for the GPU: only the choice is held here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)

    def tried(name, replace, device):
        return base.Availability(able or type(replace(nn.Linear(16, 32))).__name__ != "TensorCoreLinear", "not solved")

    monkeypatch.setattr(student, "try_out", tried)
    backend = get_backend("week16")
    backend._available(None, "cuda")
    chosen = backend._replace(nn.Linear(16, 32), "yours")
    assert type(chosen).__name__ == kind
    assert backend.compiles == ("block" if kind == "TensorCoreLinear" else "between")
    assert ("not solved" in backend.note) == (not able)


@pytest.mark.parametrize(
    "source, reason",
    [
        (GOOD, ""),
        *((source, NOT_FINISHED) for source in ("", HOLE, GOOD.replace(BODY, HOLE))),
        (GOOD.replace(BODY, "return x @ 3"), "your FP8 linear fails (TypeError"),
        (GOOD.replace(BODY, "return x.sum()"), "gives no gradient to its weight: arm skipped"),
        ("import no_such_part", "fails (ModuleNotFoundError"),
        (None, "there is no students_part here: arm skipped"),
    ],
)
def test_the_students_linear(source, reason, tmp_path, monkeypatch, hide):
    if source is not None:
        (tmp_path / "students_part.py").write_text(source)
    monkeypatch.setitem(student.PARTS, "week16", "students_part:FP8Linear")
    monkeypatch.syspath_prepend(tmp_path)
    hide("students_part")
    with torch.device("meta"):  # as when a model is built without memory
        able = availability("week16")
    assert able.ok == (reason == "") and reason in able.reason
    if able.ok:
        model, backend = decoder(), get_backend("week16")
        report = convert(backend, model, None, ["head"])
        assert report.module_type == "students_part.FP8Linear"
        biased = nn.Linear(16, 32)
        assert get_backend("week16")._replace(biased, "yours").bias is biased.bias
        with backend.probe():
            loss_of(model, backend, tokens()).backward()
        assert len(backend.scales) == 4 * LINEARS
