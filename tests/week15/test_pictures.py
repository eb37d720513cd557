"""The notebook's experiments and pictures: right parts give right pictures, wrong ones are seen to be wrong."""

import pytest

from week15_tp_attention import attention, pipeline
from week15_tp_attention.given import experiments, pictures, training
from week15_tp_attention.given.experiments import Message


def test_who_holds_which_heads():
    found = experiments.holders(n_heads=8, n_kv_heads=2, N=4)
    assert found["wq"] == found["wo"] == [[0], [0], [1], [1], [2], [2], [3], [3]]
    assert found["wk"] == found["wv"] == [[0, 1], [2, 3]]
    assert "wk: 0+1, 2+3" in pictures.shards(found, 4).alt


def test_a_wrong_half_of_the_heads_is_seen(monkeypatch):
    right = attention.slice_weights

    def wrong(weights, share, d_head):
        return {**right(weights, share, d_head), "wv": weights["wv"][-d_head * (share.kv[1] - share.kv[0]) :].clone()}

    monkeypatch.setattr(attention, "slice_weights", wrong)
    found = experiments.holders(n_heads=8, n_kv_heads=2, N=4)
    assert found["wv"] == [[], [0, 1, 2, 3]] and "wv: nobody" in pictures.shards(found, 4).alt


def test_messages_and_what_is_kept():
    sent = {name: experiments.messages_of(name) for name in ("plain", "sequence, kept", "sequence, gathered again")}
    assert [m.phase for m in sent["plain"]] == ["forward", "forward", "backward", "backward"]
    assert {m.kind for m in sent["plain"]} == {"all_reduce"}
    wide = {name: sum(m.ring_bytes for m in messages if m.kind != "all_reduce") for name, messages in sent.items()}
    plain = sum(m.ring_bytes for m in sent["plain"])
    assert wide["sequence, kept"] == plain and wide["sequence, gathered again"] == 1.25 * plain
    none = pictures.messages({"plain": [Message("forward", "all_reduce", 2.0)]}, {"plain": 1}).alt
    assert "plain: 1.00" in none  # a missing message is missing in the picture


@pytest.mark.parametrize(
    "schedule, held", [("one_at_a_time", [1] * 4), ("gpipe", [8] * 4), ("one_f_one_b", [4, 3, 2, 1])]
)
def test_a_pipelines_chart_is_of_what_ran(schedule, held):
    loss, ledgers = experiments.piped(schedule)
    run = experiments.on_wire(ledgers)
    assert [experiments.held(ledger) for ledger in ledgers] == held
    # Steps of 1 and 2 ms; replay counts in ticks, whose rounding is far below a microsecond.
    time = {"one_at_a_time": 8 * 12e-3}.get(schedule, (8 + 3) * 3e-3)
    assert run.time == pytest.approx(time, abs=1e-6)
    assert f"{schedule} takes {time * 1e3:.0f} ms" in pictures.schedules({schedule: (run, ledgers)}).alt
    assert loss == pytest.approx(experiments.piped("one_f_one_b")[0], rel=1e-6)


def test_schedules_that_come_back_are_drawn_beside_one_that_does_not(monkeypatch, capsys):
    def backwards(P, M, p):
        return pipeline.gpipe(P, M, p)[::-1]

    monkeypatch.setattr(pipeline, "one_f_one_b", backwards)
    ran = experiments.runs(("one_at_a_time", "gpipe", "one_f_one_b"))
    assert list(ran) == ["one_at_a_time", "gpipe"] and "one_f_one_b: " in capsys.readouterr().out
    with pytest.raises(Exception, match="Rank"):
        experiments.runs(("one_f_one_b",))  # nothing is left to draw


def test_a_deadlock_needs_both_directions_and_what_a_rank_raises_is_no_answer(monkeypatch):
    for alone in ("forward", "gradient"):
        assert experiments.comes_back("one_f_one_b", [alone]) is None
    assert experiments.comes_back("one_f_one_b", ["forward", "gradient"]).reason == "deadlock"
    assert experiments.comes_back("gpipe", ["forward", "gradient"]) is None

    def blank(P, M, p):
        raise NotImplementedError("Task 15.6: 1F1B")

    monkeypatch.setattr(pipeline, "one_f_one_b", blank)
    with pytest.raises(Exception, match=r"Task 15\.6"):
        experiments.comes_back("one_f_one_b", ["forward"])


def test_forgotten_copies_train_on():
    right, wrong = training.train(4, steps=6), training.train(4, replicas_summed=False, steps=6)
    one = training.train(1, steps=6)
    # Six steps of float32: sums in another order.
    assert right.losses == pytest.approx(one.losses, rel=1e-4) and right.wrong < 1e-5 and right.apart == 0
    assert wrong.wrong > 0.3 and wrong.apart > 0.01 and wrong.losses[-1] < wrong.losses[0]


def test_memory_by_dimension():
    found = experiments.memory()
    one = found["one rank"]
    shares = {name: (m.state / one.state, m.kept / one.kept) for name, m in found.items()}
    assert shares["FSDP 4"] == (0.25, 1.0) and shares["PP 4, 1F1B"] == (0.25, 1.0)
    assert shares["TP 4"][0] == pytest.approx(0.25, abs=0.01) and 0.25 < shares["TP 4"][1] < 1
    assert shares["TP 4, sequence"][1] < shares["TP 4"][1]
