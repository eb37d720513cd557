"""`lab compare --model FILE`: the preset's two questions, asked of a model of one's own."""

import json

import pytest

from labkit.compare import memory, own
from labkit.compare.plan import refuse_too_large
from labkit.compare.preset import load_preset
from labkit.errors import LabError
from labkit.model.config import sizes
from labkit.model.flops import flops_per_token, n_params
from labkit.model.shape_file import load_decoder
from labkit.record.read import read_run
from tests.compare.comparing import SPEED, lab_here, one_sentence, preset
from tests.model.test_files import LLAMA_3B

SMALL = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "vocab_size": 288}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rope_theta": 500000}


def toml_of(shape, **more) -> str:
    """A model file of a decoder's shape."""
    keys = dict(layers="n_layers", hidden="d_model", heads="n_heads", kv_heads="n_kv_heads", ffn="d_ffn")
    keys |= dict(vocab="vocab_size", seq="max_seq_len", rope_theta="rope_theta")
    values = {key: getattr(shape, theirs) for key, theirs in keys.items()} | more
    return "".join(f"{key} = {value}\n" for key, value in values.items())


def h100_with(shape, *more):
    """The preset h100, which no machine of the tests can run, with this shape in both parts."""
    base = load_preset("h100")
    tables = (("train", base.config("bf16")), ("speed.train", base.speed_config("bf16")))
    return load_preset("h100", [*(s for name, config in tables for s in own.shapes(config, shape, name)), *more])


@pytest.fixture
def small(tmp_path):
    folder = tmp_path / "Small-1"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL))
    return folder / "config.json"


def test_what_is_typed_of_the_model_holds_in_both_parts(small):
    typed = ["train.seq_len=64", "train.model.n_layers=2"]

    def lengths(*typed):
        whole = load_preset("cpu-rehearsal", [*own.settings("cpu-rehearsal", small, typed), *typed])
        configs = [whole.config_of(part, "fp8", None, 1) for part in ("speed", "safety")]
        return [(config.seq_len, config.resolved_model.n_layers) for config in configs]

    assert lengths() == [(128, 3), (128, 3)]
    assert lengths(*typed) == [(64, 2), (64, 2)]
    assert lengths(*typed, "speed.train.seq_len=32") == [(32, 2), (64, 2)]


def test_a_window_is_held_against_the_sequences_that_are_trained(small):
    small.write_text(
        json.dumps({**SMALL, "model_type": "mistral", "sliding_window": 64, "max_position_embeddings": 512})
    )
    own.settings("cpu-rehearsal", small, ["train.seq_len=64"])
    with pytest.raises(LabError, match="sliding_window of 64"):
        own.settings("cpu-rehearsal", small, [])


def test_both_parts_train_the_files_model_and_all_else_stays(small):
    before, decoder = load_preset("cpu-rehearsal"), load_decoder(small)
    after = load_preset("cpu-rehearsal", own.settings("cpu-rehearsal", small))
    for part in ("speed", "safety"):
        was, now = (each.config_of(part, "fp8", None, 1) for each in (before, after))
        assert now.resolved_model == decoder and now.seq_len == 128 and now.data.vocab_size == 288
        changed = {"model", "seq_len", "data"}
        assert now.model_dump(exclude=changed) == was.model_dump(exclude=changed)
        assert now.data.replace(vocab_size=was.data.vocab_size) == was.data
    assert small.parent.name in after.title and set(after.arms) >= set(before.arms)
    # Rates are the preset's by FLOPs: else a budget would leave arms undone, or start what cannot end in it.
    for part, length in (("speed", 256), ("safety", 128)):
        share = flops_per_token(sizes()["tiny"], length, causal=True)
        share /= flops_per_token(load_decoder(small), 128, causal=True)
        for arm in ("bf16", "fp8"):
            shown, was = (getattr(each.arms[arm].expect, part) for each in (after, before))
            assert shown == pytest.approx(was * share, rel=1e-3), "four digits are written"


@pytest.mark.parametrize("gib, world", [(79.2, 1), (140.4, 1), (44.5, 2)])
def test_as_much_at_a_time_as_is_predicted_to_fit(gib, world):
    shape = sizes()["1b"].replace(n_layers=24)
    whole = h100_with(shape)
    assert load_preset("h100").repeat.spread and whole.repeat.spread is None, "this model's scatter is on no record"
    rows = own.sequences(whole.speed_config("bf16", gib, world), gib, world, most=20)
    parts = own.micro_batches(whole.config("bf16"), gib, world)
    config, most = whole.speed_config("bf16", gib, world), own.FILLED * gib * memory.GIB
    at = {n: memory.predict(config.replace(batch_size=n * world), world)["peak"] for n in (rows, rows + 1)}
    assert 1 < rows < 20 and at[rows] <= most < at[rows + 1]
    loss = whole.config("bf16")
    at = {n: memory.predict(loss.replace(accumulation=n), world)["peak"] for n in (parts, parts // 2)}
    assert 64 % (parts * world) == 0 and parts > 1 and at[parts] <= most < at[parts // 2]
    shown, by_memory = own.batches(whole, gib, world), f'speed.batch_by_memory={{"0" = {rows}}}'
    assert shown == [f"train.accumulation={parts}", "speed.train.accumulation=1", by_memory]
    assert own.batches(load_preset("h100"), 140.4, 1) == ['speed.batch_by_memory={"0" = 20}'], "a small model's"
    after = h100_with(shape, *shown)
    assert after.speed_config("bf16", gib, world).batch_size == rows * world and after.config("bf16").batch_size == 64


def test_a_published_config_is_taken_as_it_comes_and_checkpointing_makes_room_in_both_arms(tmp_path, monkeypatch):
    """Tied embeddings, scaled RoPE, a head_dim of its own; on one H100."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3B))
    monkeypatch.setattr(own, "check_device", lambda preset: 1)
    monkeypatch.setattr(own, "gpu_memory_gib", lambda preset: 79.2)
    rows = {}
    for typed in ([], ["train.activation_checkpointing=block"]):
        whole = load_preset("h100", [*own.settings("h100", tmp_path / "config.json", typed), *typed])
        for arm in ("bf16", "te-current"):
            timed, trained = whole.speed_config(arm, 79.2), whole.config(arm)
            kinds = {timed.activation_checkpointing, trained.activation_checkpointing}
            assert kinds == {"block" if typed else "none"}
            assert n_params(timed.resolved_model) == n_params(trained.resolved_model) == 3_212_749_824
            assert timed.resolved_model.tie_embeddings and timed.resolved_model.rope_scaling == (32.0, 1.0, 4.0, 8192.0)
            assert max(memory.predict(one, 1)["peak"] for one in (timed, trained)) < own.FILLED * 79.2 * memory.GIB
            rows[len(typed), arm] = timed.batch_size
    assert rows == {(0, "bf16"): 2, (0, "te-current"): 2, (1, "bf16"): 10, (1, "te-current"): 10}


def test_a_model_whose_weights_do_not_fit_is_refused_before_anything_starts():
    config = load_preset("8b").speed_config("bf16", 79.2, 1)
    with pytest.raises(LabError, match="120 GiB of each of 1 GPUs, and a GPU here has 79"):
        refuse_too_large(config, 1, 79.2)
    refuse_too_large(config, 8, 79.2)
    assert memory.held(config, 1) == 16 * n_params(sizes()["8b"]) > memory.held(config, 8) * 7.9


def test_what_cannot_be_trained_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "qwen.json").write_text(json.dumps({**SMALL, "model_type": "qwen2"}))
    words = ("compare", "--preset", "cpu-rehearsal", "--model")
    one_sentence(lab_here(tmp_path, *words, "qwen.json"), "qwen.json", "biases in q, k and v")
    one_sentence(lab_here(tmp_path, *words, "nowhere.toml"), "there is no config file nowhere.toml")
    assert not (tmp_path / "runs").exists()


def test_the_planner_reads_the_same_file(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(toml_of(sizes()["8b"]))
    done = lab_here(tmp_path, "plan", "--model", "mine.toml", "--gpus", 8, "--seq", 4096)
    assert done.returncode == 0 and "8.03 B parameters" in done.stdout and "sequences of 4096 tokens" in done.stdout
    qwen = {**SMALL, "model_type": "qwen2", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    (tmp_path / "qwen.json").write_text(json.dumps(qwen))
    done = lab_here(tmp_path, "plan", "--model", "qwen.json", "--gpus", 8, "--batch-tokens", "64K")
    assert done.returncode == 0 and "sequences of 128 tokens" in done.stdout, "its biases change no plan"


@pytest.mark.thorough
def test_both_questions_are_answered_of_ones_own_model(tmp_path, small):
    """On two ranks: speed and loss are this model's, the page says whose, and the same line goes on."""
    words = ("compare", "--preset", preset(tmp_path, SPEED), "--model", small)
    done = lab_here(tmp_path, *words)
    out = tmp_path / "runs" / "micro-Small-1"
    assert done.returncode in (0, 1), done.stdout + done.stderr
    run, parameters = read_run(out), n_params(load_decoder(small))
    for folder, tokens in {"speed/bf16": 16, "speed/fp8": 16, "arms/bf16": 32, "arms/fp8": 32}.items():
        arm = read_run(out / folder)
        assert arm.status == "finished" and arm.run["parameters"] == parameters, folder
        assert arm.config["seq_len"] == tokens, "the preset's, as the model has more"
    # The small preset checks that its arms run, convert and learn: it is decided, from losses that are there.
    assert run.results["verdict"]["word"] in ("pass", "fail") and run.results["arms"]["fp8"]["heldout"] > 0
    assert run.results["speed"]["verdict"]["ratios"]["fp8"]
    page = (out / "report.html").read_text()
    assert small.parent.name in page and f"{parameters / 1e6:.3g} M parameters" in page
    lab_here(tmp_path, *words)
