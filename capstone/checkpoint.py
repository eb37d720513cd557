"""Checkpoints: a run that goes on as if nothing had happened, on this mesh or another (task C.2).

What a rank has that nobody else has: its shards, the two moments beside them, AdamW's count of steps, and what the loop
gives along as `own` (a learning rate that was lowered, say). Weights in full are nowhere, and they are not needed: each
rank writes what it holds, all at once.

    rank-00003      what rank 3 holds                      manifest      who wrote what, and how one knows it is whole

**When is it there?** A job is killed at any moment, also in the middle of a save. So: every rank writes its file beside
(`store.put`); all ranks learn that all have; then one rank writes the manifest, and then the checkpoint gets its name,
in one step (`store.publish`). Before that it does not exist, after it it is whole. Whoever publishes before the others
have written has a checkpoint with a hole, on the one day on which it matters. And if one rank cannot write (its disk is
full), all must know: the others would go on, and wait for it in the next collective.

**Is it still whole?** A disk loses bits, a copy is cut short. The manifest has the bytes and the CRC-32 of every file
(`save` names the keys), and of itself (`sealed`). A damaged checkpoint is passed over, and said; the one before it is
used. All ranks must choose the same: one that reads another step trains another model.

**On another mesh** the numbers lie elsewhere. A flat parameter's vector is cut into dp parts; the tensors in it are
slices of whole weights, over tp; and the units are on pp stages. All of that is bookkeeping if each file says what it
holds: of each unit the names, the local shapes, in the vector's order. `place` (given) says where a slice lies in the
whole weight. Moments are laid out as their weights are. On the same mesh nothing is cut and nothing computed: the run
goes on bit for bit. On another one sums are taken in other orders.

**What must not be mixed.** A checkpoint of another model, or of other numbers in AdamW, loads without an error if the
shapes agree. So the manifest says of what setup it is (`fingerprint`, given), and another one is refused: degrees and
micro-batches may change, nothing else may. In FP8 the formats are part of it.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from capstone.given.layout import fingerprint, place
from capstone.given.saying import from_bytes, gather_json, to_bytes
from capstone.given.store import Store
from labkit.errors import LabError

MANIFEST = "manifest"


class Loaded(NamedTuple):
    """What `load` found. own: what the rank of this number passed at the save (of rank 0, where there was none).
    passed_over: a sentence for each damaged checkpoint that is newer."""

    step: int
    own: dict[str, Any]
    passed_over: list[str]


def name_of(rank: int) -> str:
    """The file of a rank (given)."""
    return f"rank-{rank:05d}"


def holds(trainer: Any) -> list[list[tuple[str, list[int]]]]:
    """What this rank's units hold, in the order of their vectors: (name, local shape) of each tensor (given: the worked
    example of reading a layout)."""
    return [[(trainer.names[p], list(p.shape)) for p in unit.params] for unit in trainer.units]


def sealed(body: dict[str, Any]) -> bytes:
    """A manifest's bytes with its own checksum (given)."""
    text = json.dumps(body, sort_keys=True)
    return json.dumps({"crc32": zlib.crc32(text.encode()), "body": text}).encode()


def opened(data: bytes) -> dict[str, Any] | None:
    """What `sealed` closed; None if it is not whole (given)."""
    try:
        found = json.loads(data)
        return json.loads(found["body"]) if zlib.crc32(found["body"].encode()) == found["crc32"] else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def save(trainer: Any, step: int, store: Store, own: dict[str, Any]) -> None:
    """Task C.2. Write the checkpoint of `step`; all ranks call it together.

    own: of this rank, plain values. LabError, on every rank, if a rank could not write; then nothing is published, and
    what was put is discarded.

    The grader of C.3 reads it, too. A rank's file (`to_bytes`): "shards", "m" and "v", each a list of one CPU vector a
    unit; "steps"; "own". The manifest (`sealed`): "step", "mesh", "setup", and "ranks", which has of each rank its
    "place", [pp, dp, tp], its "holds", and of its file the "bytes" and the "crc32".
    """
    ### BEGIN SOLUTION C.2 write beside, then publish
    group, optimizer = trainer.mesh.group, trainer.optimizer
    vectors = {"shards": [unit.shard.detach() for unit in trainer.units], "m": optimizer.m, "v": optimizer.v}
    data = to_bytes({**vectors, "steps": optimizer.steps, "own": own})
    problem = ""
    try:
        store.put(step, name_of(group.rank), data)
    except OSError as error:
        problem = f"rank {group.rank}: {error}"
    mesh = trainer.mesh
    mine = {
        "problem": problem,
        "place": [mesh[name].rank for name in ("pp", "dp", "tp")],
        "holds": holds(trainer),
        "bytes": len(data),
        "crc32": zlib.crc32(data),
    }
    every = gather_json(group, mine)  # nobody is past this before all have written
    problems = [one["problem"] for one in every if one["problem"]]
    if group.rank == 0 and not problems:
        body = {"step": step, "ranks": every, "mesh": dict(mesh.sizes), "setup": fingerprint(trainer)}
        try:
            store.put(step, MANIFEST, sealed(body))
            store.publish(step)
        except OSError as error:
            problems = [f"rank 0: {error}"]
    problems = gather_json(group, problems)[0]  # and nobody goes on before it is there
    if problems:
        if group.rank == 0:
            store.discard(step)
        raise LabError(f"the checkpoint of step {step} could not be written: {'; '.join(problems)}")
    ### END SOLUTION


def damage(store: Store, step: int, ranks: list[int]) -> str:
    """Task C.2. What is wrong with the checkpoint of `step`, in one sentence: its manifest, and of the files those of
    `ranks` (as many as there were at the save; others are left out). "" if nothing is."""
    ### BEGIN SOLUTION C.2 is it whole
    try:
        body = opened(store.get(step, MANIFEST))
        if body is None:
            return f"step {step}: its manifest does not match its own checksum"
        for rank in ranks:
            if rank < len(body["ranks"]):
                data, wanted = store.get(step, name_of(rank)), body["ranks"][rank]
                if (len(data), zlib.crc32(data)) != (wanted["bytes"], wanted["crc32"]):
                    return f"step {step}: {name_of(rank)} is not what was written"
    except OSError as error:
        return f"step {step}: {error}"
    return ""
    ### END SOLUTION


def recut(trainer: Any, body: dict[str, Any], files: list[dict[str, Any]], kind: str) -> list[Tensor]:
    """Task C.2. This rank's vectors [S] of `kind` ("shards", "m" or "v"), one for each unit, from the files of another
    mesh. As in a FlatParameter the last rank's has zeros behind, if the tensors do not fill it.

    body: the manifest; of each saved rank `body["ranks"][r]` has "place", [pp, dp, tp], and "holds", as `holds` gives
    it. files[r][kind]: its vectors.
    """
    ### BEGIN SOLUTION C.2 from mesh to mesh
    config, sizes = trainer.setup.model, body["mesh"]
    whole: dict[str, Tensor] = {}
    shapes = config.weight_shapes()
    columns: dict[tuple[int, int], list[int]] = {}  # the ranks of one vector: those that differ in dp alone
    for rank, one in enumerate(body["ranks"]):
        columns.setdefault((one["place"][0], one["place"][2]), []).append(rank)
    for (_, tp), ranks in columns.items():
        ranks.sort(key=lambda rank: body["ranks"][rank]["place"][1])
        for unit, tensors in enumerate(body["ranks"][ranks[0]]["holds"]):
            vector = torch.cat([files[rank][kind][unit] for rank in ranks])
            lengths = [torch.Size(shape).numel() for _, shape in tensors]
            for (name, shape), part in zip(tensors, vector[: sum(lengths)].split(lengths)):
                into = whole.setdefault(name, torch.zeros(shapes[name]))
                into[place(name, config, sizes["tp"], tp)] = part.view(shape)
    found, tp_group = [], trainer.mesh["tp"]
    for unit in trainer.units:
        names = [trainer.names[p] for p in unit.params]
        own = [whole[name][place(name, config, tp_group.size, tp_group.rank)].reshape(-1) for name in names]
        S, r = len(unit.shard), unit.group.rank
        filling = torch.zeros(S * unit.group.size - sum(map(len, own)))
        found.append(torch.cat([*own, filling])[r * S : (r + 1) * S])
    return found
    ### END SOLUTION


def load(trainer: Any, store: Store) -> Loaded | None:
    """Task C.2. Fill the trainer from the newest checkpoint that is whole; all ranks call it together, and choose the
    same. None if there is none at all.

    LabError, on every rank: the newest whole one is of another setup, or all are damaged.
    """
    ### BEGIN SOLUTION C.2 the newest that is whole
    group = trainer.mesh.group
    passed_over: list[str] = []
    for step in gather_json(group, store.steps())[0]:
        saved = gather_json(group, len((_body(store, step) or {"ranks": []})["ranks"]))[0]
        mine = list(range(group.rank, max(saved, 1), group.size))  # each rank looks at a share of the files
        if problem := next((text for text in gather_json(group, damage(store, step, mine)) if text), ""):
            passed_over.append(problem)
            continue
        body = _body(store, step)
        assert body is not None  # it was whole a moment ago
        if body["setup"] != fingerprint(trainer):
            other = next(k for k, v in fingerprint(trainer).items() if body["setup"].get(k) != v)
            raise LabError(
                f"the checkpoint of step {step} was made with {other} = {body['setup'].get(other)!r}, and this run has "
                f"{fingerprint(trainer)[other]!r}: set it back, or choose another run folder"
            )
        if body["mesh"] == dict(trainer.mesh.sizes):
            own = from_bytes(store.get(step, name_of(group.rank)))
            vectors = {kind: own[kind] for kind in ("shards", "m", "v")}
        else:
            files = [from_bytes(store.get(step, name_of(rank))) for rank in range(len(body["ranks"]))]
            vectors = {kind: recut(trainer, body, files, kind) for kind in ("shards", "m", "v")}
            own = files[group.rank if group.rank < len(files) else 0]
        with torch.no_grad():
            for at, unit in enumerate(trainer.units):
                unit.shard.copy_(vectors["shards"][at])
                trainer.optimizer.m[at].copy_(vectors["m"][at])
                trainer.optimizer.v[at].copy_(vectors["v"][at])
        trainer.optimizer.steps = own["steps"]
        return Loaded(step, own["own"], passed_over)
    if passed_over:
        raise LabError(f"no checkpoint can be used ({'; '.join(passed_over)}): put back a copy of one")
    return None
    ### END SOLUTION


def _body(store: Store, step: int) -> dict[str, Any] | None:
    """A step's manifest; None if it cannot be read (given)."""
    try:
        return opened(store.get(step, MANIFEST))
    except OSError:
        return None
