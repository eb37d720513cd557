"""The checks of C.2: `lab check C.2`. Nothing is hidden.

The disk is here: what the ranks put comes back, and goes to the ranks that load. So the check can lose bits, and knows
in which order things were done. On the same mesh a resumed run equals the undisturbed one bit for bit; on another one
sums are taken in other orders, and TOL is given/alone.py's.
"""

from __future__ import annotations

import json
import math
import re
import zlib

import pytest
import torch

from capstone.given.alone import LR, RANKS, TOL, alone, drawn, far, own, place, setup
from capstone.given.alone import MESHES as FOUR
from labkit.checks import call, call_alone, expect, field, same, task
from labkit.checks.drawn import Draw

WAYS = {
    "dp2 x tp2 to dp4": ("dp2 x tp2", "dp4"),
    "dp4 to tp4": ("dp4", "tp4"),
    "tp2 x pp2 to dp2 x tp2": ("tp2 x pp2", "dp2 x tp2"),
    "tp2 to dp2 x tp2": ("tp2", "dp2 x tp2"),
    # A load alone, in BF16: three ranks divide no vector, and not the batch either.
    "dp2 x tp2 to dp3": ("dp2 x tp2", "dp3"),
}
MESHES = {**FOUR, "dp3": {"dp": 3}, "tp2": {"tp": 2}}


def ranks_of(mesh):
    return math.prod(size for name, size in MESHES[mesh].items() if name != "zero")


def saving(c, mesh, options, weights, batches, step, full=(), refused=(), begun=0, own=None, **more):
    """The checkpoint behind these batches, as that of `step`; own: by rank. AdamW has counted `begun` steps before."""
    values = setup(c, MESHES[mesh], options, weights, **more)
    each = (batches, values, LR, step, list(full), list(refused), begun)
    return call("scenarios.saved", [(*each, mine) for mine in own or [{}] * ranks_of(mesh)], timeout=40.0)


def two_steps(draw):
    """Of two checkpoints, the older first: too many numbers to try them; the text of the newer one is sorted first."""
    return draw.size(200_000, 999_999), draw.size(1_000_000, 1_999_999)


def drawn_own(draw, ranks):
    """Values by rank that only a checkpoint can know."""
    a, b, c = (f"key{draw.size(0, 10**6)}" for _ in range(3))
    return [
        {a: draw.size(1, 10**6) / 7, b: {c: [draw.size(0, 10**9), f"text {draw.size(0, 10**6)}", None]}}
        for _ in range(ranks)
    ]


def undisturbed(c, mesh, options, weights, batches, steps, refused=(), begun=0, **more):
    """The same run without a checkpoint, after `steps` and at the end, by rank: processes in which no code of yours
    runs say what a load has to bring back."""
    values = setup(c, MESHES[mesh], options, weights, **more)
    each = [(batches, values, LR, steps, list(refused), begun)] * ranks_of(mesh)
    return call("scenarios.without_save", each, timeout=40.0, given=True)[0]


def loading(c, mesh, options, batches, files, unlisted=None, **more):
    values = setup(c, MESHES[mesh], options, None, **more)
    each = [(batches, values, LR, files, (unlisted or {}).get(r, [])) for r in range(ranks_of(mesh))]
    return call("scenarios.resumed", each, timeout=40.0)[0]


def put(got, ledgers):
    """Of each rank what it put, and "publish", in order: (name, bytes, how many collectives of all it had done)."""
    found = []
    for r, ledger in enumerate(ledgers):
        done, sent = 0, []
        for event in ledger.events:
            done += event.group == "world" and event.kind in ("all_reduce", "all_gather", "broadcast", "barrier")
            sent += [done] * (event.group == "store" and event.kind == "send")
        heard = field(got[(r + 1) % len(got)], "heard")
        found.append([(name, data, sent[2 * k + 1]) for k, (name, data) in enumerate(heard)])  # its size goes before it
    return found


def publishers(wrote):
    """The ranks that published, each as often as it did."""
    return [rank for rank, mine in enumerate(wrote) for name, *_ in mine if name == "publish"]


def disk(got, ledgers):
    """What all ranks wrote, on one disk; a verdict if the step was not published once."""
    wrote = put(got, ledgers)
    times = len(publishers(wrote))
    expect(times == 1, f"the checkpoint was published {times} times, expected once, by one rank", known=True)
    files = {name: data for mine in wrote for name, data, _ in mine if name != "publish"}
    for key, value in files.items():
        plain = isinstance(value, torch.Tensor) and value.dim() == 1 and value.dtype == torch.uint8
        expect(plain, f"{key} is no file of bytes", known=True)
    return files


def restored(got, want, who, after="the load"):
    """Right after it: what was there at the save, bit for bit, on whatever mesh."""
    vectors = field(field(got, "state"), "vectors")
    for kind, wanted in want["vectors"].items():
        for name, right in wanted.items():
            if not torch.equal(came := field(field(vectors, kind), name), right):
                likely = {f"the {other}": by[name] for other, by in want["vectors"].items()}
                likely |= {"rounded to BF16": right.bfloat16().float(), "zeros": torch.zeros_like(right)}
                it_is = [what for what, other in likely.items() if torch.equal(came, other)]
                text = f": it is {' or '.join(it_is)}" if it_is else ""
                expect(False, f"{who}: after {after} the {kind} of {name} is not what was saved{text}", known=True)
    count = got["state"]["count"]
    expect(count == want["count"], f"{who}: AdamW's count is {count}, and {want['count']} at the save", known=True)
    ends = got["state"]["behind"] == 0
    expect(ends, f"{who}: after the load there is not 0 behind a vector's last tensor, where nothing is", known=True)


def on_mesh(got, c, mesh, second, rank):
    """What ranks on a mesh had at the save, as a rank of another mesh is to hold it."""
    found = {}
    for kind in got[0]["state"]["vectors"]:
        whole = {name: torch.zeros(size) for name, size in c.weight_shapes().items()}
        for r, one in enumerate(got):
            for name, part in one["state"]["vectors"][kind].items():
                own(name, whole[name], c, mesh.get("tp", 1), place(mesh, r)[2]).copy_(part)  # a view
        cut = second.get("tp", 1), place(second, rank)[2]
        found[kind] = {name: own(name, t, c, *cut) for name, t in whole.items()}
    return {"vectors": found, "count": got[0]["state"]["count"]}


def as_before(got, want, rank):
    """The same vitals and weights, bit for bit."""
    restored(got, want["state"], f"rank {rank}")
    same(
        [x for v in got["vitals"] for x in v[:2]],
        [x for v in want["vitals"] for x in v[:2]],
        rank=rank,
        what="losses and norms after the resume",
    )
    for name, weight in want["weights"].items():
        off = far(got["weights"].get(name), weight)
        expect(
            off == 0,
            f"rank {rank}: after the resume {name} is {off:.2g} off the undisturbed run's; expected bit for bit",
        )


@task("C.2", points=5)
@pytest.mark.parametrize("mesh, precision", [("dp2 x tp2", "fp8"), ("dp2 x pp2", "fp32")])
def test_resumed(mesh, precision, seed):
    """On the same mesh, bit for bit; a step before the save was skipped"""
    c, weights, batches, options = drawn(seed, mesh, "resumed")
    draw = Draw(seed, "resumed", mesh)
    (_, step), values = two_steps(draw), drawn_own(draw, RANKS)
    # AdamW counts its own steps
    more = dict(refused=[draw.size(0, 1)], begun=draw.size(2, 400), precision=precision)
    got, ledgers = saving(c, mesh, options, weights, batches[:2], step, own=values, **more)
    files, want = disk(got, ledgers), undisturbed(c, mesh, options, weights, batches, 2, **more)
    again = loading(c, mesh, options, batches[2:], files, precision=precision)
    for r in range(RANKS):
        error = field(again[r], "error")
        expect(not error[0], f"rank {r}: the checkpoint was refused: {error[1]}", known=True)
        found = field(again[r], "loaded")
        expect(
            isinstance(found, dict) and found["step"] == step,
            f"rank {r}: the checkpoint of step {step} must be found: {found}",
            known=True,
        )
        expect(
            found["own"] == values[r],
            f"rank {r}: its own values came back as {found['own']}, expected {values[r]}",
            known=True,
        )
        restored(got[r], want[r]["state"], f"rank {r}", "the save")
        as_before(again[r], want[r], r)
    published_last(put(got, ledgers))
    as_promised(files, mesh, step)
    for r in range(RANKS):  # half as much again: a vector may be saved with more than is in use of its storage
        held = sum(w.numel() for w in want[r]["state"]["vectors"]["weights"].values()) / MESHES[mesh]["dp"]
        most, size = int(18 * held) + (1 << 16), len(files[f"{step}/rank-{r:05d}"])
        text = f"rank {r}'s file has {size} bytes, expected at most {most}: weights and moments of its own shards"
        expect(size <= most, text, known=True)


def as_promised(files, mesh, step):
    """What `save` says of its manifest: C.3's grader goes by it."""
    expect(f"{step}/manifest" in files, f"the checkpoint of step {step} has no manifest", known=True)
    body = json.loads(json.loads(bytes(files[f"{step}/manifest"].tolist()))["body"])
    expect(body.get("step") == step, f'the manifest of step {step} has "step" {body.get("step")}', known=True)
    for r, one in enumerate(body["ranks"]):
        data = bytes(files[f"{step}/rank-{r:05d}"].tolist())
        right = {"place": list(place(MESHES[mesh], r)), "bytes": len(data), "crc32": zlib.crc32(data)}
        for key, value in right.items():
            said = one.get(key)
            expect(said == value, f'the manifest has of rank {r} "{key}" {said}, expected {value}', known=True)


def published_last(wrote):
    """Nobody's file may be written, or once more, after the publishing, or at an unknown time before it: a collective
    lies between."""
    (writer,) = publishers(wrote)
    names, when = [name for name, *_ in wrote[writer]], [done for *_, done in wrote[writer]]
    ahead, again = when[names.index("publish")], names[-1] != "publish"
    for r, mine in enumerate(wrote):
        last = max((done for name, _, done in mine if r != writer or "/rank-" in name), default=0)
        expect(
            ahead > last and not (again and r == writer),
            f"rank {writer} published while rank {r} may still have been writing: no collective of all lies between",
            cause=("published before all had written",),
        )


@task("C.2", points=5)
@pytest.mark.parametrize("way", WAYS)
def test_another_mesh(way, seed):
    """On another mesh, to rounding"""
    first, second = WAYS[way]
    c, weights, batches, options = drawn(seed, way, "another")
    trains = ranks_of(second) != 3
    more = {} if trains else {"precision": "bf16"}
    draw = Draw(seed, "another", way)
    refused, begun = [draw.size(0, 2)], draw.size(2, 400)  # 2: none of the two
    counts = {"refused": refused, "begun": begun}
    values = drawn_own(draw, ranks_of(first))
    files = disk(*saving(c, first, options, weights, batches[:2], two_steps(draw)[1], own=values, **counts, **more))
    before_it = undisturbed(c, first, options, weights, batches[:2], 2, **counts, **more)
    mesh, before = MESHES[second], ranks_of(first)
    again = loading(c, second, options, batches[2:] if trains else [], files, **more)
    taken = [batch for n, batch in enumerate(batches) if n == 2 or n not in refused]
    want = alone(c, weights, taken, options, begun=begun) if trains else {}
    for r in range(ranks_of(second)):
        error = field(again[r], "error")
        expect(not error[0], f"rank {r}: the checkpoint was refused: {error[1]}", known=True)
        whose, result = values[r if r < before else 0], field(again[r], "loaded")["own"]
        expect(result == whose, f"{way}: rank {r}: `own` is {result}, expected {whose}", known=True)
        restored(again[r], on_mesh(before_it, c, MESHES[first], mesh, r), f"{way}: rank {r}")
        if not trains:
            continue
        result = field(again[r], "vitals")
        same(result[0][0], want["losses"][-1], tol=TOL * want["losses"][-1], rank=r, what=f"{way}: the loss of step 3")
        same(result[0][1], want["norms"][-1], tol=TOL * want["norms"][-1], rank=r, what=f"{way}: the norm of step 3")
        for name, whole in want["weights"].items():
            off = far(again[r]["weights"].get(name), own(name, whole, c, mesh.get("tp", 1), place(mesh, r)[2]))
            expect(off <= TOL, f"{way}: rank {r}: after step 3 {name} is {off:.2g} off, relative to its norm")


@task("C.2", points=2)
@pytest.mark.parametrize(
    "what", ["a file", "the manifest", "cut short", "missing", "a rank's that is gone", "all", "by rank"]
)
def test_damaged(what, seed):
    """The newest one is damaged, or all are"""
    draw = Draw(seed, what)
    if what == "by rank":
        return by_rank(draw)
    c, weights, batches, options = drawn(seed, what, "damaged")
    files: dict[str, torch.Tensor] = {}
    older, newer = two_steps(draw)
    for step, taken in ((older, 0), (newer, 1)):
        files |= disk(*saving(c, "dp2 x tp2", options, weights, batches[:taken], step))
    # "a rank's that is gone": two ranks go on with the files of four
    second = "tp2" if what == "a rank's that is gone" else "dp2 x tp2"
    first = ranks_of(second) if what == "a rank's that is gone" else 0
    name = f"{newer}/" + ("manifest" if what == "the manifest" else f"rank-{draw.size(first, RANKS - 1):05d}")
    expect(
        name in files, f"a checkpoint has the files that the module's text names, and {name} is not there", known=True
    )
    bytes_ = files[name].clone()
    if what == "cut short":
        bytes_ = bytes_[: len(bytes_) // 2]
    else:
        bytes_[draw.size(0, len(bytes_) - 1)] ^= 4
    whole_one = loading(c, second, options, [], files) if what == "a file" else []
    files = {**files, name: bytes_}
    over = [newer]
    if what == "missing":
        del files[name]
    if what == "cut short":  # and so is a newer one, of which nothing else is there
        over = [newer + draw.size(1, 99), newer]
        files[f"{over[0]}/manifest"] = files[f"{newer}/manifest"][:-9]
    if what == "all":
        files[f"{older}/manifest"] = files[f"{older}/manifest"][:-9]
        nothing_left(loading(c, second, options, [], files), loading(c, second, options, [], {}))
        return
    got = loading(c, second, options, [], files)
    for r, one in enumerate(whole_one):
        newest = field(one, "loaded")["step"] == newer
        expect(newest, f"rank {r}: of two whole checkpoints the newest must be taken", known=True)
    for r in range(ranks_of(second)):
        error = field(got[r], "error")
        expect(
            not error[0],
            f"rank {r}: {name} is damaged, the one before is whole, and it was refused: {error[1]}",
            known=True,
        )
        found = field(got[r], "loaded")
        expect(
            found["step"] == older,
            f"rank {r}: {name} is damaged, and the checkpoint of step {found['step']} was taken",
            known=True,
        )
        said = found["passed_over"]
        expect(
            len(said) == len(over) and all(str(step) in one for step, one in zip(over, said)),
            f"rank {r}: a sentence each must say that steps {over} were passed over: {said}",
            known=True,
        )


def by_rank(draw):
    """What `damage` says of the ranks that it is called for, whatever a disk can do."""
    N = draw.size(3, 6)
    files = [draw.ids(256, draw.size(20, 40)).to(torch.uint8) for _ in range(N)]
    bad, every = draw.size(1, N - 1), [*range(N)]
    name, flipped, others = f"rank-{bad:05d}", files[bad].clone(), [r for r in every if r != bad]
    flipped[-1] ^= 1
    cases = [
        ("all are whole", (every, {}, []), False),
        (f"{N} ranks saved, and more are to be judged", ([0, N, N + 2], {}, []), False),
        (f"another rank's file than {name} is to be judged, and that is damaged", (others, {name: flipped}, []), False),
        (f"the last bit of {name} is lost", (every, {name: flipped}, []), True),
        (f"{name} is longer", ([bad], {name: torch.cat([files[bad], flipped[:1]])}, []), True),
        (f"{name} is gone", (every, {name: None}, []), True),
        (f"{name} cannot be read", (every, {}, [name]), True),
        ("the manifest is gone", ([], {"manifest": None}, []), True),
        ("the manifest cannot be read", ([], {}, ["manifest"]), True),
        ("the manifest is no manifest", ([], {"manifest": flipped}, []), True),
    ]
    cases = [cases[k] for k in draw.order(range(len(cases)))]  # no answer goes by a question's number
    for (why, _, wanted), said in zip(cases, call_alone("scenarios.judged_whole", files, [one for _, one, _ in cases])):
        ok = isinstance(said, str) and bool(said) == wanted
        expect(ok, f"{why}: `damage` says {said!r}, expected {'a sentence' if wanted else 'nothing'}", known=True)


def nothing_left(damaged, none):
    """All checkpoints are damaged, and none is there: not the same."""
    for r in range(len(damaged)):
        error = field(damaged[r], "error")
        expect(
            error[0] == "LabError",
            f"rank {r}: both checkpoints are damaged, and it must say so by a LabError: a run that begins at step 0 in "
            f"silence loses everything that was done; it gave {error or damaged[r].get('loaded')}",
            known=True,
        )
        expect(damaged[r].get("untouched") is True, f"rank {r}: something was changed before the refusal", known=True)
        error = field(none[r], "error")
        expect(
            not error[0] and field(none[r], "loaded") is None,
            f"rank {r}: no checkpoint is there: None is expected, and it gave {error}",
            known=True,
        )


@task("C.2", points=1)
def test_one_rank_sees_less(seed):
    """One rank's listing lacks the newest checkpoint"""
    c, weights, batches, options = drawn(seed, "listing")
    draw = Draw(seed, "listing")
    late, (older, newer) = draw.size(0, RANKS - 1), two_steps(draw)
    files: dict[str, torch.Tensor] = {}
    for step, taken in ((older, 0), (newer, 1)):
        files |= disk(*saving(c, "dp4", options, weights, batches[:taken], step))
    got = loading(c, "dp4", options, [], files, unlisted={late: [newer]})
    for r in range(RANKS):
        error = field(got[r], "error")
        expect(not error[0], f"rank {r}: both checkpoints are whole, and it was refused: {error[1]}", known=True)
        expect(field(got[r], "loaded") is not None, f"rank {r} found no checkpoint, and two are there", known=True)
    chosen = [one["loaded"]["step"] for one in got]
    expect(
        len({*chosen}) == 1 and chosen[0] in (older, newer),  # which of the two they agree on is theirs
        f"the store of rank {late} does not list step {newer} yet (a file server may be late), and by rank they go on "
        f"from steps {chosen}: each goes by its own `store.steps()`, expected one step for all",
        known=True,
    )


@task("C.2", points=1)
def test_a_disk_that_is_full(seed):
    """One rank cannot write, or the manifest finds no room"""
    c, weights, _, options = drawn(seed, "full")
    draw = Draw(seed, "full")
    bad, step = draw.size(1, RANKS - 1), two_steps(draw)[1]
    for name, who in ((f"rank-{bad:05d}", f"rank {bad}"), ("manifest", ""), ("publish", "")):
        got, ledgers = saving(c, "dp4", options, weights, [], step, full=[name])
        for r in range(RANKS):
            error = field(got[r], "error")
            expect(
                error[0] == "LabError" and who in error[1],
                f"there is no room for: {name}; and rank {r} heard: {error}; expected a LabError on every rank",
                known=True,
            )
            named = {int(other) for other in re.findall(r"\brank (\d+)", error[1])} - {bad, r, 0}  # 0: it may publish
            text = f"there is no room for: {name}; and rank {r} heard of ranks {named}, too: {error[1]}"
            expect(not (who and named), text, known=True)
        wrote = put(got, ledgers)
        by, tried = publishers(wrote), {other for mine in wrote for other, *_ in mine}
        expect(not by, f"a checkpoint that lacks {name} was published by rank {by[:1]}", known=True)
        ok = name == "publish" or f"{step}/{name}" in tried
        expect(ok, f"nobody has put {name}, for which there is no room", known=True)
        thrown = {thrown for one in got for thrown in one["discarded"]}
        text = f"what was put of step {step} is to be discarded: it fills the disk; of steps {thrown} it was"
        expect(thrown == {step}, text, known=True)


@task("C.2", points=1)
def test_another_run(seed):
    """The newest checkpoint is of something else"""
    c, weights, _, options = drawn(seed, "other")
    draw = Draw(seed, "other run")
    older, newer = two_steps(draw)
    numbers = {"weight_decay": draw.size(1, 31) / 64, "adam_eps": draw.size(21, 99) / 1000, "precision": "fp8"}
    numbers |= {
        "clip_norm": draw.size(65, 99) / 64,
        "norm_eps": draw.size(2, 99) / 1000,
        "betas": draw.size(1, 63) / 77,
    }
    others = {key: {key: value} for key, value in numbers.items()} | {"betas": {"betas": (0.8, numbers["betas"])}}
    others["norm_eps"] = {"model": {**c.model_dump(), "norm_eps": numbers["norm_eps"]}}
    one, two = [[*numbers][k] for k in draw.order(range(len(numbers)))[:2]]
    files = disk(*saving(c, "dp4", options, weights, [], older))
    moved = {key.replace(f"{older}/", f"{newer}/", 1): value for key, value in files.items()}
    foreign = disk(*saving(c, "dp4", {**options, **others[two]}, weights, [], older))
    for key, there in ((one, files), (two, {**foreign, **moved})):
        got = loading(c, "dp4", {**options, **others[key]}, [], there)
        for r in range(RANKS):
            error = field(got[r], "error")
            expect(
                error[0] == "LabError" and key in error[1],
                f"rank {r}: another {key} must be refused by its name: {error}",
                known=True,
            )
            named = [name for name in numbers if name not in (key, "precision") and name in error[1]]
            text = f"rank {r}: {key} alone is another, {numbers[key]}, and the refusal names {named}, too: {error[1]}"
            expect(not named or str(numbers[key]) in error[1], text, known=True)
            expect(got[r].get("untouched") is True, f"rank {r}: something was changed before the refusal", known=True)
    damaged = {key.replace(f"{older}/", f"{newer}/", 1): value.clone() for key, value in foreign.items()}
    damaged[f"{newer}/rank-{draw.size(0, RANKS - 1):05d}"][-1] ^= 1
    for r, one in enumerate(loading(c, "dp4", options, [], {**files, **damaged})):
        found = field(one, "loaded") if not field(one, "error")[0] else None
        expect(
            found is not None and found["step"] == older,
            f"rank {r}: step {newer} is damaged, whatever it is of, and step {older} is whole and this run's: "
            f"{one['error'] or found}",
            known=True,
        )
