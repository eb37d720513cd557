"""The checks of C.3: `lab check C.3`. Nothing is hidden.

The first three call single functions. The others start torchrun, twice, and strike the run from outside: signals, files
that come late, files that may not grow. What they judge is what is left on the disk: steps.jsonl, events.jsonl, and the
checkpoints, read here and compared with one process that met no fault. All numbers come from the seed.
"""

from __future__ import annotations

import math
import re
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from capstone.given import struck
from capstone.given.struck import EVERY, LIMIT, PROGRAM, RANKS, TOL, Job, events, gate, published, reached, steps, until
from labkit.checks import call, call_alone, call_each, expect, same, task
from labkit.checks.drawn import Draw
from labkit.checks.judge import field as field_of
from labkit.checks.outside import Site
from labkit.checks.runner import here, site

# ---- single functions


@task("C.3", points=2)
@pytest.mark.parametrize("N", [2, 3])
def test_one_message(N, seed):
    """One message behind each step"""
    draw = Draw(seed, "one message", N)
    own = [draw.size(1, 900) / 1000 for _ in range(N)]
    for asking in (None, *range(N)):
        got, ledgers = call("survive.tell", [(rank == asking, own[rank]) for rank in range(N)])
        heard = [field_of(one, "stop") for one in got]
        who = "nobody" if asking is None else f"rank {asking}"
        alone = heard == [rank == asking for rank in range(N)]
        expect(
            heard == [asking is not None] * N,
            f"{who} was to stop, and by rank they heard {heard}",
            cause=("each rank knows of its own signal alone",) if alone else (),
        )
        for rank, one in enumerate(got):
            same(list(field_of(one, "seconds")), own, rank=rank, what="own seconds by rank")
            made = [e.kind for e in ledgers[rank].events if e.kind not in ("wait", "compute")]
            expect(len(made) == 1, f"rank {rank} made {len(made)} calls, expected one: {made}", known=True)


@task("C.3", points=3)
@pytest.mark.parametrize("N", [2, 3, 4])
def test_who_is_slow(N, seed):
    """Who is slow"""
    draw, questions, want = Draw(seed, "slow", N), [], []

    def rows(slow, times, count, most=1.3):
        found = []
        for _ in range(count):
            base = draw.size(200, 400) / 1000
            row = [base * draw.size(100, int(100 * most)) / 100 for _ in range(N)]
            if slow is not None:
                row[slow] = base * times * most
            found.append(row)
        return found

    def ask(what, found, answer):
        questions.append((found,))
        want.append((what, answer))

    for slow in range(N):
        ask("one rank took three times as long in each of many steps", rows(slow, 3, 6), slow)
        ask("... as before, after steps in which nobody was slow", rows(None, 1, 5) + rows(slow, 3, 4), slow)
        ask("all took about as long", rows(None, 1, 6), None)
        ask("one late step", rows(None, 1, 5) + rows(slow, 9, 1), None)
        ask("three late steps, and one before them that was not", rows(None, 1, 1) + rows(slow, 9, 3), None)
        ask("fewer steps than WINDOW", rows(slow, 3, 3), None)
        ask("it was slow, and is no more", rows(slow, 3, 6) + rows(None, 1, 1), None)
        late = [[1.0 if r == slow else 9.0 for r in range(N)]]
        ask("in one of the last steps the others took nine times as long", rows(slow, 3, 5) + late, None)
        short = [[0.03 if r == slow else 0.01 for r in range(N)] for _ in range(3)] + rows(slow, 3, 1)
        ask("three times as long in each step, and LEAST above the others in one of them alone", short, None)
        tiny = [[1e-4 if r != slow else 9e-4 for r in range(N)] for _ in range(6)]
        ask("nine times as long, and less than a millisecond", tiny, None)
        if N == 4:  # the others' median is neither their largest, nor their mean, nor their smallest
            others = [r for r in range(N) if r != slow]
            for what, far, mine, answer in (("longer", 40.0, 0.9, slow), ("shorter", 0.01, 0.45, None)):
                uneven = [[0.3] * N for _ in range(6)]
                for number, row in enumerate(uneven):
                    row[slow], row[others[number % 3]] = mine, far
                ask(f"one of the others took much {what} each time, another one in each step", uneven, answer)
        if N == 3:  # the median of two is the middle between them
            near = [0.9 if r == slow else 0.3 for r in range(3)]
            above = [*near]
            near[slow - 1], above[slow - 1] = 0.5, 0.7
            ask("2.25 times the others' median, and 1.8 times the longer of them", [near] * 6, slow)
            ask("1.8 times the others' median, and three times the shorter of them", [above] * 6, None)
        ask("half as long again", [[0.4 if r != slow else 0.6 for r in range(N)] for _ in range(6)], None)
    ask("one rank alone", [[1.0]] * 6, None)
    for (what, answer), got in zip(want, call_each("survive.slow_rank", questions)):
        expect(
            got == answer and type(got) is type(answer),
            f"{what}: the slow rank is {answer}, and not {got!r}",
            known=True,
        )


def stands(rank, **more):
    """A rank's Standing as plain values: in its own code, having begun 7 collectives of "dp", unless `more` says it."""
    values = dict(pid=100 + rank, host="here", beat=9, begun={"world": 3, "dp": 7}, call="", group="", ranks=[])
    return {**values, "number": 0, "peer": None, "stood": 0.0, "where": "", "silent": 0.2, **more}


@task("C.3", points=2)
@pytest.mark.parametrize("N", [2, 4])
def test_who_hangs(N, seed):
    """Who hangs"""
    draw, questions, want = Draw(seed, "hung", N), [], []
    every = list(range(N))

    def ask(what, standings, answer):
        questions.append((standings, LIMIT))
        want.append((what, answer))

    for bad in every:
        others = [r for r in every if r != bad]
        kind = ("all_gather", "reduce_scatter")[draw.size(0, 1)]
        there = dict(call=kind, group="dp", ranks=every, number=7, where="a.py:3", begun={"world": 3, "dp": 8})

        def at(waited, bad=bad, there=there, **of_bad):
            return [stands(bad, **of_bad) if r == bad else stands(r, **there, stood=waited + r / 10) for r in every]

        ask("all wait for a rank in its own code", at(LIMIT + 1), (bad, kind, "dp", others[0]))
        ask(
            "all wait for a rank that does not beat any more",
            at(LIMIT + 1, silent=LIMIT + 2),
            (bad, kind, "dp", others[0]),
        )
        new = at(LIMIT + 1, begun={"world": 3})
        ask("... and has begun no collective of that group yet", new, (bad, kind, "dp", others[0]))
        ask("they have not waited long enough", at(LIMIT - 2, silent=LIMIT), None)
        exactly = [stands(r) if r == bad else stands(r, **there, stood=LIMIT) for r in every]
        ask("they have waited for just the limit", exactly, (bad, kind, "dp", others[0]))
        stopped = at(LIMIT + 1, **{**there, "number": 6, "begun": {"world": 3, "dp": 7}}, stood=1.0, silent=LIMIT + 2)
        ask("it was stopped in the collective before", stopped, (bad, kind, "dp", others[0]))
        quiet = [one | {"silent": 0.6 * LIMIT} if r == bad else one for r, one in enumerate(stopped)]
        ask("... and has been silent for more than half the limit", quiet, (bad, kind, "dp", others[0]))
        old = [stands(r, **there, stood=90.0, silent=80.0) for r in every]
        ask("nobody beats: nobody can be believed to wait", old, None)
        asleep = [stands(r, **there, stood=90.0, silent=80.0) if r == bad else stands(r) for r in every]
        ask("one is silent in a call, and the others compute: nobody is known to wait", asleep, None)
        if N == 4:
            # Ranks 0 and 1 are a pair of dp, and 2 and 3. `culprit` is late; its partner waits for it in dp, and
            # rank 0 for the partner in tp.
            culprit = draw.size(2, 3)
            partner = 5 - culprit
            begun = {"dp": 7, "tp": 2}
            held = [
                stands(0, call="all_reduce", group="tp", ranks=[0, partner], number=1, stood=LIMIT + 2, begun=begun),
                stands(1, call="all_reduce", group="tp", ranks=[1, culprit], number=1, stood=LIMIT + 2, begun=begun),
                stands(
                    partner, call=kind, group="dp", ranks=[2, 3], number=7, stood=LIMIT + 3, begun={"dp": 8, "tp": 1}
                ),
                stands(culprit, begun={"dp": 7, "tp": 1}),
            ]
            held.sort(key=lambda one: one["pid"])
            ask("rank 0 waits for a rank that itself waits", held, (culprit, "all_reduce", "tp", 1))
            posted = [stands(r, **there, stood=LIMIT + 1) if r == 0 else stands(r) for r in every]
            posted[0]["begun"] = {"world": 3, "dp": 10}  # it has posted two more
            for r in (1, 5 - culprit):
                posted[r] = stands(r, begun={"world": 3, "dp": 8 + (r == 1)})  # and rank 1 the next one, too
            ask("two have posted theirs, and compute on", posted, (culprit, kind, "dp", 0))
            beside = [stands(0, silent=LIMIT + 2), *(stands(r, **{**there, "ranks": [1, 2, 3]}) for r in (1, 2, 3))]
            beside[culprit], beside[partner]["stood"] = stands(culprit), LIMIT + 1
            ask("a rank is silent that nobody waits for", beside, (culprit, kind, "dp", partner))
            first, second, third = draw.order(range(4))[:3]
            chain = [stands(r) for r in every]
            for r, its in ((first, second), (second, third)):
                chain[r] |= dict(call="recv", group="pp", ranks=every, peer=its, stood=LIMIT + 1)
            ask("one waits for its peer, and that for its own", chain, (third, "recv", "pp", second))
            first, last = sorted(draw.order(range(4))[:2])
            two = [stands(r) if r in (first, last) else stands(r, **there, stood=LIMIT + 1) for r in every]
            two[last]["silent"] = LIMIT + 2
            by = min(r for r in every if r not in (first, last))
            ask("of two that are late the higher one is silent", two, (last, kind, "dp", by))
        peer = dict(call="recv", group="pp", ranks=every, number=2, peer=bad, stood=LIMIT + 1)
        ask(
            "one waits for its peer",
            [stands(r, **peer) if r == others[-1] else stands(r) for r in every],
            (bad, "recv", "pp", others[-1]),
        )
        if N == 4:
            apart = {others[-1]: stands(others[-1], **peer), others[0]: stands(others[0], silent=LIMIT + 2)}
            each = [apart.get(r, stands(r)) for r in every]
            ask("... and a rank is silent that is not its peer", each, (bad, "recv", "pp", others[-1]))
    ask("all compute", [stands(r) for r in every], None)
    for (what, answer), got in zip(want, call_each("scenarios.who_hangs", questions)):
        got = None if got is None else tuple(got)
        expect(got == answer, f"{what}: (rank, call, group, by) is {answer}, and not {got}", known=True)


@task("C.3", points=1)
@pytest.mark.parametrize("N", [3, 4])
def test_who_acts(N, seed):
    """Who acts when somebody hangs"""
    draw = Draw(seed, "acts", N)
    bad = draw.size(0, N - 1)
    others = [r for r in range(N) if r != bad]
    by = others[draw.size(0, N - 2)]
    kind, group = ("all_gather", "reduce_scatter", "all_reduce", "recv")[draw.size(0, 3)], f"dp{draw.size(10, 9999)}"
    here = draw.size(1, 999)
    there = here + draw.size(1, 999)
    for host in ("here", "there", "gone"):
        waits = dict(call=kind, group=group, ranks=[*range(N)], number=7, stood=LIMIT + 1, where="a.py:3")
        standings = [stands(r, host=f"node{here}", **({} if r == bad else waits)) for r in range(N)]
        if host == "there":
            standings[bad]["host"] = f"node{there}"
        for r, one in enumerate(standings):
            one["pid"] = 2**31 - 1 - r  # no system has it
        found = [bad, kind, group, by, "it is in its own code"]
        for r, got in zip(others, call_each("scenarios.acts", [(r, found, standings, host == "gone") for r in others])):
            written, killed, left = (field_of(got, key) for key in ("written", "killed", "left"))
            done = f"wrote {len(written)} autopsies, killed {len(killed)} processes" + ", left" * bool(left)
            if r != by:
                expect(
                    not (written or killed or left),
                    f"rank {by} is the one that acts, and rank {r} did, too: it {done}; expected nothing",
                    known=True,
                )
                continue
            expect(len(written) == 1, f"rank {by} is the one that acts: it {done}; expected one autopsy", known=True)
            said = re.findall(r"\w+", written[0][0])
            expect(
                {str(bad), kind, group} <= {*said},
                f"the autopsy must name rank {bad}, its call {kind} and its group {group}: {written[0][0]!r}",
                known=True,
            )
            named = dict(rank=bad, call=kind, group=group)
            expect(written[0][1] == named, f"the autopsy's fields are {written[0][1]}, expected {named}", known=True)
            right = [[standings[bad]["pid"], signal.SIGKILL]] if host != "there" else []
            where = {"here": "of this host", "gone": "of this host, and has died meanwhile"}.get(
                host, "of another host, where its number is another process's"
            )
            expect(
                killed == right,
                f"the hung process is {where}: rank {by} killed {killed} (process, signal), expected {right}",
                known=True,
            )
            expect(len(left) == 1 and left[0] != 0, f"rank {by} must leave, with a status that is not 0", known=True)
            expect(
                field_of(got, "first") == "autopsy",
                f"rank {by} killed the hung process before it had written: torchrun ends all ranks when one dies",
                known=True,
            )


@task("C.3", points=1)
@pytest.mark.parametrize("full", [False, True], ids=["there", "no room"])
def test_what_is_kept(full, seed):
    """What is kept, and what comes back"""
    draw = Draw(seed, "kept", full)
    step, losses = draw.size(3, 90), {"losses": {"1": draw.size(1, 9)}}
    own = {"rate": 0.5 ** draw.size(1, 4), "shift": draw.size(1, 9), "rollbacks": draw.size(1, 4), "history": losses}
    got = call_alone("scenarios.kept", step, own, full)
    done, want = field_of(got, "done"), ["save", "not saved"] if full else ["save", "checkpoint", "saved"]
    where = "finds no room" if full else "is written"
    expect(
        done[:1] + sorted(done[1:]) == want,
        f"a checkpoint that {where}: done, in order, was {done}, expected {want}",
        known=True,
    )
    expect(field_of(got, "kept") is not full, f"a checkpoint that {where}: `keep` returns {not full}", known=True)
    now = {"step": field_of(got, "step"), **field_of(got, "own")}
    for key, value in {"step": step - 1, **own}.items():
        expect(now[key] == value, f"restored: {key} is {now[key]}, and {value} in the checkpoint", known=True)
    expect(field_of(got, "passed over") == ["one"], "`restore` returns what `load` has passed over", known=True)


@task("C.3", points=1)
@pytest.mark.parametrize("skip", [True, False], ids=["other batches", "the same batches"])
def test_way_back(skip, seed):
    """What a way back leaves as it is today"""
    draw = Draw(seed, "way back", skip)
    to = draw.size(3, 60)
    at, now, own = to + draw.size(2, 9), drawn_own(draw), {**drawn_own(draw), "history": {"losses": {"1": 5}}}
    if not skip:
        own["shift"] = now["shift"]  # no way back moves it
    shift = now["shift"] + (at - to if skip else 0)
    right = {**now, "step": to, "shift": shift, "rollbacks": now["rollbacks"] + 1, "history": own["history"]}
    stays = {**now, "step": at, "history": {}}
    says = [["rolled back", {"to": to, "shift": shift}], ["recut", {"step": to}]]
    there: list[list[int]] = [[to]] * RANKS
    empty: list[list[int]] = [[]] * RANKS
    behind = draw.size(0, RANKS - 1)
    late = [[] if rank == behind else [to] for rank in range(RANKS)]
    for lists, what in ((there, "one is there"), (empty, "none is there"), (late, "one rank's listing is late")):
        got, _ = call("scenarios.went_back", [(to, at, now, own, skip, mine) for mine in lists])
        back = [field_of(one, "back") for one in got]
        want = [what == "one is there"] * RANKS
        expect(
            len({*back}) == 1 and (lists is late or back == want),
            f"{what}: `go_back` returns, by rank, {back}, expected "
            + ("the same on all" if lists is late else f"{want}"),
            known=True,
        )
        for rank, one in enumerate(got):
            now_is, said = field_of(one, "run"), field_of(one, "said")
            for key, value in (right if back[rank] else stays).items():
                expect(
                    now_is[key] == value,
                    f"{what}, rank {rank}: from step {at} to the checkpoint of step {to}, `skip_data` is {skip}: {key} is "
                    f"then {now_is[key]}, expected {value}; today's were {now}, the checkpoint's {own}",
                    known=True,
                )
            wanted = says if back[rank] else [["not rolled back", {}]]
            expect(
                sorted(said) == sorted(wanted),
                f"{what}, rank {rank}: said and done was {said}, expected {wanted}",
                known=True,
            )


def drawn_own(draw):
    return {"rate": 0.5 ** draw.size(1, 9), "shift": draw.size(1, 99), "rollbacks": draw.size(1, 9)}


# ---- under torchrun


@dataclass
class Story:
    """What became of a run: by the name of a fault a sentence that says what is wrong, "" if nothing is."""

    wrong: dict[str, str] = field(default_factory=dict)
    printed: str = ""
    error: BaseException | None = None

    def of(self, fault: str) -> None:
        if self.error is not None and fault not in self.wrong:
            raise self.error
        text = self.wrong.get(fault, "the run did not come so far" + self.ending())
        expect(not text, f"{fault}: {text}{self.ending() if text else ''}", known=True)

    def ending(self) -> str:
        tail = [line for line in self.printed.splitlines() if line.strip()][-6:]
        return "\nThe last that was printed:\n  " + "\n  ".join(tail) if tail else ""


_stories: dict[Any, Story] = {}
_lock: dict[str, threading.Lock] = {"struck": threading.Lock(), "goes on": threading.Lock()}


def story_of(name, run, seed) -> Story:
    """A run's story: the faults of one test are one run's, so whoever asks first runs it."""
    runner, case = here()
    key = (id(runner), name, seed)
    with _lock[name]:
        if key not in _stories:
            call_alone("scenarios.written")  # a blank says so before torchrun is started
            story = Story()
            try:
                with site() as place:
                    try:
                        run(place, seed, story)
                    finally:
                        story.printed = place.said()
            except Exception as error:  # whatever a stranger's files made of it: the run is not repeated for each fault
                story.error = error
            _stories[key] = story
        case.answered = True  # whoever ran it: what cannot be taken apart is what the run left
        return _stories[key]


def curve(place: Site, want: dict[int, Any], last: int) -> str:
    """What is wrong with the record up to this step, or ""."""
    got = steps(place)
    if -1 in got:
        return "a step stands twice in steps.jsonl, or has no number"
    missing = [step for step in range(1, last + 1) if step not in got]
    if missing:
        return f"step {missing[0]} is missing in steps.jsonl"
    for step in range(1, last + 1):
        loss, right = got[step], want[step]["loss"]
        if right is None:
            if isinstance(loss, (int, float)) and math.isfinite(loss):
                return f"step {step} must not be finite: its batch makes a NaN on one rank, and its loss is {loss}"
        elif not isinstance(loss, (int, float)) or not abs(loss - right) <= TOL * abs(right):
            return f"the loss of step {step} is {loss}, and {right:.6f} in the undisturbed run"
    return ""


def weights(place: Site, job: Job, want: dict[int, Any], step: int) -> str:
    """What is wrong with the checkpoint of this step, or ""."""
    if step not in published(place):
        return f"there is no checkpoint of step {step} (there are {published(place)})"
    got = struck.saved(place, step, job.model)
    if isinstance(got, str):
        return f"the checkpoint of step {step}: {got}"
    what, by = struck.off(got, want[step], job.poison)
    return "" if by <= TOL else f"in the checkpoint of step {step}, {what} is {by:.2g} off the undisturbed run"


def resumed(place: Site) -> list[Any]:
    """The first step of every continuation."""
    return [one.get("step") for one in events(place, "resume")]


def first_of(*sentences: str) -> str:
    return next((text for text in sentences if text), "")


UNKNOWN = "the numbers in `pids` are not those of the ranks that torchrun has started: nothing could be done to them"


def struck_run(place: Site, seed: int, story: Story) -> None:
    """Killed, hung, preempted: one run, three faults."""
    job = Job(seed, "struck", steps=30, bad=set(), batches=30)
    draw, want = job.draw, job.undisturbed(job.plan())
    killed_at, hung_at, asked_at = draw.size(EVERY + 1, 2 * EVERY - 1), draw.size(12, 14), draw.size(21, 23)
    late, victim, stuck, preempted = (draw.size(0, RANKS - 1) for _ in range(4))
    job.lay(place)
    gate(place, late, killed_at)
    place.start(PROGRAM, ranks=RANKS, restarts=3)

    # A rank is killed while one waits for its batch, and the other, or the same, in a collective.
    expect(
        reached(place, killed_at), f"the run does not come to step {killed_at}{Story(printed=place.said()).ending()}"
    )
    first = place.pids(RANKS)
    job.configure(place, hang_after=LIMIT)  # of those that start now
    job.forget(place, EVERY)
    killed = place.signal(victim, signal.SIGKILL)  # before the gates open: a busy machine could save step 10 in between
    for rank in range(RANKS):
        gate(place, rank, hung_at)
    if not reached(place, hung_at, after=1):
        story.wrong["killed"] = "the run did not go on after a rank was killed"
        return
    again = resumed(place)
    story.wrong["killed"] = first_of(
        "" if first and killed else UNKNOWN,
        "" if place.pids(RANKS) != first else "the ranks are the same processes as before",
        ""
        if again[:1] == [EVERY + 1]
        else f"it began again with step {again[0]}, and its checkpoint is of step {EVERY}",
        curve(place, want, hung_at),
        weights(place, job, want, 2 * EVERY),
    )

    # A rank stops, in its own code; the other waits for it in the first gather of a step. torchrun is held meanwhile, so
    # that what ends a rank is a rank.
    pids, other = place.pids(RANKS) or {}, 1 - stuck
    looks, hung, waits = struck.Looks(place, other), pids.get(stuck, 0), pids.get(other, 0)
    place.signal_agent(signal.SIGSTOP)
    place.signal(stuck, signal.SIGSTOP)
    for rank in range(RANKS):
        gate(place, rank, asked_at)
    until(place, lambda: not place.state(waits) or looks.late())
    left = not place.state(waits)
    gone = place.state(hung) != "stopped" and until(place, lambda: not place.state(hung))  # SIGKILL wakes it
    text = first_of(
        "" if pids else UNKNOWN,
        hang(events(place, "hung"), stuck),
        "" if left else f"rank {other} has written the autopsy, and did not leave",
        "" if gone else "the hung process was not ended: torchrun would wait 30 s for it",
    )
    if text:
        place.signal(stuck, signal.SIGKILL)  # the next fault has its own points
    job.configure(place)
    job.forget(place, 2 * EVERY)
    place.signal_agent(signal.SIGCONT)
    on = reached(place, asked_at, after=2)
    story.wrong["hung"] = text or first_of(
        "" if on else "the run did not go on afterwards", curve(place, want, asked_at)
    )
    if not on:
        return

    # A rank is asked to end, and torchrun, which asks all; both ranks wait for their next batch.
    heard = place.signal(preempted, signal.SIGTERM)
    place.signal_agent(signal.SIGTERM)
    for rank in range(RANKS):
        gate(place, rank, None)
    if struck.ended(place) is None:
        story.wrong["preempted"] = "it does not end after SIGTERM"
        return
    last, newest = max(steps(place)), (published(place) or [0])[0]
    text = first_of(
        "" if heard else UNKNOWN,
        ""
        if newest == last
        else f"the last step is {last}, and the newest checkpoint of step {newest}: steps are lost",
        "" if last <= asked_at + 1 else f"asked to end in step {asked_at + 1}, it went on to step {last}",
        weights(place, job, want, newest) if newest else "",
    )
    starts = len(resumed(place))
    job.forget(place, last)
    place.start(PROGRAM, ranks=RANKS, restarts=0)
    status = struck.ended(place)
    again = resumed(place)[starts:]
    story.wrong["preempted"] = text or first_of(
        "" if status == 0 else f"given again, the command ends with status {status}",
        "" if again == [last + 1] else f"the continuation begins with step {again}, expected {last + 1}",
        curve(place, want, job.steps),
        weights(place, job, want, job.steps),
    )


def hang(found: list[dict[str, Any]], stuck: int) -> str:
    """What is wrong with the autopsy."""
    if not found:
        return f"no event `hung`, though a rank waited for the stopped one for longer than the limit of {LIMIT:.0f} s"
    one = found[0]
    if len(found) > 1:
        return f"the autopsy was written {len(found)} times"
    if one.get("rank") != stuck:
        return f"the autopsy names rank {one.get('rank')}, and rank {stuck} hangs"
    if one.get("call") != "all_gather" or one.get("group") != "dp":
        return f'the autopsy names {one.get("call")} of group {one.get("group")!r}, and it is the all_gather of "dp"'
    words = str(one.get("message"))
    if not all(word in words for word in (f"rank {stuck}", "all_gather", "dp")):
        return f"the sentence does not name rank, call and group: {words!r}"
    return ""


@task("C.3", points=9)
@pytest.mark.parametrize("fault", ["killed", "hung", "preempted"])
def test_struck(fault, seed):
    """Killed, hung, preempted under torchrun"""
    story_of("struck", struck_run, seed).of(fault)
    if fault == "hung":  # the run always hangs in the same call, whose two words could be fixed
        draw = Draw(seed, "another call")
        stuck, group = draw.size(0, 1), f"tp{draw.size(10, 9999)}"
        kind = ("reduce_scatter", "all_reduce")[draw.size(0, 1)]
        there = dict(call=kind, group=group, ranks=[0, 1], number=7, begun={"world": 3, group: 8})
        late = stands(stuck, begun={"world": 3, group: 7}, silent=LIMIT + 2)
        waits = stands(1 - stuck, **there, stood=LIMIT + 1, where="a.py:3")
        both = [late, waits] if stuck == 0 else [waits, late]
        [got] = call_each("scenarios.who_hangs", [(both, LIMIT)])
        right = [stuck, kind, group, 1 - stuck]
        got = got and list(got)
        expect(got == right, f"for another call `hung` names {got}, expected {right}", known=True)
        done = call_alone("scenarios.acts", 1 - stuck, [*right, "its process is stopped"], both, False)
        named, wrote = dict(rank=stuck, call=kind, group=group), [fields for _, fields in field_of(done, "written")]
        expect(wrote == [named], f"for another call the autopsies' fields are {wrote}, expected {[named]}", known=True)


def goes_on_run(place: Site, seed: int, story: Story) -> None:
    """Bad batches, a full disk, a way back twice, a slow rank: one run, one start."""
    draw = Draw(seed, "goes on")
    every, back, factor = draw.size(5, 7), draw.size(3, 4), draw.size(60, 75) / 100
    full = draw.size(2, 5, times=every)  # the checkpoint that finds no room
    to = full - every  # that of this step stays the newest
    alone, row, pair = draw.size(2, every - 1), full + draw.size(1, 2), every + draw.size(1, 2)
    some = range(pair, pair + draw.size(2, back - 1))
    bad = {alone, *some, *range(row, row + 2 * back)}
    shifts = [row + back - 1 - to, row + 2 * back - 1 - to]
    shift, first = shifts[-1], to + back + draw.size(5, 8)
    last = first + draw.size(13, 16)
    job = Job(seed, "goes on", last, bad, batches=last + shift + 2, every=every, back=back, factor=factor)
    plan = job.plan({full})
    want = job.undisturbed(plan)
    victim, slow = draw.size(0, RANKS - 1), draw.size(0, RANKS - 1)
    job.lay(place)
    for rank in range(RANKS):
        gate(place, rank, full - 1)
    place.start(PROGRAM, ranks=RANKS, restarts=0)

    expect(reached(place, full - 1), f"the run does not come to step {full - 1}{Story(printed=place.said()).ending()}")
    said = [(one.get("step"), one.get("action")) for one in events(place, "nonfinite")]
    right = [(alone, "skip"), (pair, "skip"), *((step, "lower") for step in some[1:])]
    seconds = [one.get("rank_seconds") or [] for one in struck.lines(place, "steps.jsonl")]
    by_rank = all(isinstance(one, list) and len(one) == RANKS for one in seconds)
    story.wrong["skipped"] = first_of(
        "" if said == right else f"the events of bad steps are {said}, expected {right}",
        curve(place, want, every),
        "" if to in published(place) else f"the checkpoint of step {to} is not there",
        ""
        if by_rank and any(a[0] != a[-1] for a in seconds)
        else "`rank_seconds` of the record are not each rank's own",
    )

    # Files of one rank may not grow while that step is saved. Lines of the record are shorter than that.
    filled = place.fill(victim, 96 << 10)
    elsewhere = sys.platform != "linux"  # there the files are one's own; what a stranger left may be a link
    if not filled and elsewhere:
        (place.left / "run" / "checkpoints" / f"step-{full:08d}.partial").write_text("in the way")
    for rank in range(RANKS):
        gate(place, rank, full + 1 if full + 1 < row else full)
    until(place, lambda: events(place, "not saved") or full in published(place))
    unsaved = [one.get("step") for one in events(place, "not saved")]
    there, older = published(place), weights(place, job, want, to)
    if filled:
        place.fill(victim, None)
    elif elsewhere:
        (place.left / "run" / "checkpoints" / f"step-{full:08d}.partial").unlink(missing_ok=True)
    story.wrong["full disk"] = first_of(
        "" if filled or elsewhere else UNKNOWN,
        "" if unsaved == [full] else f"events `not saved` were written of steps {unsaved}, expected {[full]}",
        "" if full not in there else f"the checkpoint of step {full} is there, and one rank could not write its part",
        older,
    )

    # Three or four bad batches in a row: back to step `to`, since step `full` could not be saved. So are as many behind
    # them: back to step `to` again, whose checkpoint knows of no way back. Then one rank's batches come late.
    for rank in range(RANKS):
        gate(place, rank, first + shift - 1 if rank == slow else None)
    if not reached(place, first - 1, after=2):
        story.wrong["rolled back"] = f"the run does not come back to step {first - 1}"
        return
    step, shown, pause = first, 0, 1.0
    while shown < 4 and step < job.steps and reached(place, step - 1):  # then the other rank waits already
        time.sleep(pause)  # of a step that takes 20 ms
        gate(place, slow, step + shift)
        reached(place, step)
        shown = shown + 1 if late(place, step, slow) else 0
        step += 1
        pause = pause if shown else min(2 * pause, 8.0)  # on a busy machine the other one is slow, too
    gate(place, slow, None)
    status = struck.ended(place)
    # Read when all is written: on a busy machine a step's event may come after its line.
    named = {one.get("rank") for one in events(place, "slow rank") if first <= int(one.get("step") or 0) < step}
    rolled = [(one.get("to"), one.get("shift")) for one in events(place, "rolled back")]
    led = [one.get("action") for one in events(place, "nonfinite")][1 + len(some) :]
    counted, wanted = struck.own(place, job.steps, "rollbacks"), [(to, one) for one in shifts]
    story.wrong["rolled back"] = first_of(
        "" if led == 2 * ["skip", *(back - 2) * ["lower"], "roll back"] else f"the last bad steps led to {led}",
        "" if rolled == wanted else f"it rolled back to {rolled} (step, shift), expected {wanted}",
        "" if status == 0 else f"the run ends with status {status}",
        curve(place, want, job.steps),
        weights(place, job, want, job.steps),
        ""
        if counted == [2] * RANKS
        else f"it went back twice, and the checkpoint of step {job.steps} says by rank {counted} `rollbacks`: who "
        "does not count them goes back for ever",
    )
    story.wrong["slow"] = first_of(
        ""
        if shown == 4
        else f"rank {slow} came late to step after step, and `rank_seconds` of the record do not say so",
        "" if named == {slow} else f"while rank {slow} was slow the events named {sorted(map(str, named))}",
    )


def late(place: Site, step: int, slow: int) -> bool:
    """Whether the record says that this rank took much longer for a step than the other."""
    for line in struck.lines(place, "steps.jsonl"):
        with suppress(TypeError, IndexError, KeyError, ValueError):
            if line.get("step") == step:
                mine, others = (float(line["rank_seconds"][rank]) for rank in (slow, 1 - slow))
                return mine > 3 * others + 0.2
    return False


@task("C.3", points=6)
@pytest.mark.parametrize("fault", ["skipped", "full disk", "rolled back", "slow"])
def test_goes_on(fault, seed):
    """NaN, full disk, slow rank under torchrun"""
    story_of("goes on", goes_on_run, seed).of(fault)
