"""`python -m labkit.plan.validate` and the fit behind it."""

import numpy as np
import pytest

from labkit.errors import LabError
from labkit.plan import fit, validate
from labkit.plan.constants import DATA, WIDTHS, Constants, accuracy, constants, share_of_stack
from labkit.plan.rows import read

SHOWN = read(DATA / "shown.csv")


def test_it_prints_every_run_and_the_errors(capsys):
    assert validate.main([str(DATA / "shown.csv")]) == 0
    out = capsys.readouterr().out
    assert all(each["id"][:40] in out for each in SHOWN)
    said = validate.judge(SHOWN)
    assert all(name in out for name in (*said["errors"], *said["sweeps"]))
    timed = [each for each in said["rows"] if each["measured_s"]]
    errors = np.abs([each["predicted_s"] / each["measured_s"] - 1 for each in timed])
    assert said["errors"]["time"] == pytest.approx(
        dict(n=77, mean=errors.mean(), median=np.median(errors), p90=np.quantile(errors, 0.9))
    )
    assert said["errors"]["time"]["mean"] < 0.08
    sweep = said["sweeps"]["VTRAIN-3.6B-64"]
    assert sweep["n"] == 26 and sweep["tau"] > 0.65 and sweep["regret"] < 0.03 and f"{sweep['tau']:.3f}" in out


def test_plans_that_ran_out_of_memory_are_counted():
    ran, small = SHOWN[2], {**SHOWN[2], "id": "small", "gpu_mem_gb": "20", "fits": "no", "step_s": ""}
    wrong = {**SHOWN[2], "id": "wrong", "fits": "OOM", "step_s": "?"}
    said = validate.judge([ran, small, wrong])
    assert (said["out_of_memory"], said["called_fitting"], said["ran"], said["called_too_large"]) == (2, 1, 1, 0)
    assert said["errors"]["time"]["n"] == 1


@pytest.mark.parametrize("name, ran, ran_out", [("own", 14, 2), ("shown", 79, 2)])
def test_no_plan_that_ran_is_called_too_large_and_none_that_ran_out_fitting(name, ran, ran_out):
    said = validate.judge(read(DATA / f"{name}.csv"))
    assert (said["ran"], said["out_of_memory"]) == (ran, ran_out)
    assert (said["called_fitting"], said["called_too_large"]) == (0, 0)
    assert said["may_fit"] < 0.4 * ran  # a range that says nothing would pass as well


def test_one_step_shown_scales_the_others_by_what_is_more_than_noise():
    sigma = accuracy()["interval"]
    assert abs(share_of_stack(0.2 * sigma, sigma)) < 0.01 * sigma
    assert share_of_stack(-0.7, sigma) == pytest.approx(-0.7, rel=0.05)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("", "holds no runs"),
        ("id,gpus\na,8\n", "has no column layers, hidden, gbs"),
        ("id,gpus,hidden,layers,gbs\na,8,?,?,1\n", "no row can be read"),
        ("id,gpus,hidden,layers,gbs\na,8,4096,32,64\n", "unknown, and peak_tflops_bf16 is no number"),
    ],
)
def test_files_that_cannot_be_used(text, shown, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    for argv in ([str(tmp_path / "x.csv")], [str(tmp_path / "none.csv")], []):
        with pytest.raises(LabError, match=shown if "x.csv" in str(argv) else "") as said:
            validate.main(argv)
        assert str(said.value).isprintable()


def test_a_row_with_little_in_it_is_predicted():
    """Only sizes, GPU and batch: wide, and there."""
    thin = dict(id="thin", gpu="H100", gpus="64", hidden="8192", layers="80", gbs="128", tp="8", pp="4")
    said = validate.judge([{**dict.fromkeys(SHOWN[0], ""), **thin}])["rows"][0]
    assert said["most_s"] > 1.3 * said["least_s"] > 0


def test_a_fit_finds_constants_that_made_the_rows():
    """Rows whose times the model itself made, by other constants: the fit finds these."""
    found, _, stacks = fit.load_data()
    other = Constants()._replace(**{name: getattr(Constants(), name) * 1.06 for name in WIDTHS})
    # weights so large that the priors no longer matter
    k = fit.fit(found, fit.predict(found, other), 1e4 * fit.votes(stacks, np.ones(len(stacks))), Constants())
    for name in WIDTHS:
        assert getattr(k, name) == pytest.approx(getattr(other, name), rel=0.01)


def test_a_row_of_weight_nothing_is_not_seen():
    found, wanted, stacks = fit.load_data()
    seen = np.array([stack != "torchtitan" for stack in stacks])
    wild = np.where(seen, wanted, wanted + 3)
    weights = fit.votes(stacks, seen)
    assert fit.fit(found, wanted, weights, Constants(), 2) == fit.fit(found, wild, weights, Constants(), 2)
    assert [sum(weights[[s == stack for s in stacks]]) for stack in ("NeMo/Megatron-Core", "torchtitan")] == [1.0, 0.0]


def test_what_is_committed_is_what_the_fit_gives():
    found, wanted, stacks = fit.load_data()
    k = fit.fit(found, wanted, fit.votes(stacks, np.ones(len(stacks))), Constants())
    for name, value in constants()._asdict().items():
        assert getattr(k, name) == pytest.approx(value, rel=2e-3), name
    seen = np.abs(np.exp(fit.predict(found, k) - wanted) - 1)
    assert seen.mean() == pytest.approx(accuracy()["seen_mean"], abs=1e-3)


@pytest.mark.thorough
def test_the_errors_on_record_are_those_of_rows_left_out():
    assert fit.fit_all()[1] == pytest.approx(accuracy(), abs=2e-3)
