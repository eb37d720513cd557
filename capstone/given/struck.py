"""What the checks of C.3 do from outside: a drawn job, faults, and what the run must have become, by one process that
meets none. It knows nothing of your modules; what ranks left behind it reads as a stranger's.

**What may differ.** Two data-parallel ranks add the same gradients in another order than one process. alone.py's TOL
is that for one step: 4e-5 of a gradient. A run of 30 steps adds 30 such errors, and this learning rate with AdamW's
large epsilon keeps them from growing: TOL is 30 x 4e-5 = 1.2e-3, for longer runs too. Found on four seeds: at most
5e-6, in weights and moments, and with one step left out 2e-2 and more. (At alone.py's rate of 0.1 they do grow: 5e-3 in
the moments.)
"""

from __future__ import annotations

import io
import json
import math
import re
import time
import zipfile
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from capstone.given.alone import EPS
from labkit.checks.drawn import Draw
from labkit.checks.outside import Site
from labkit.model.config import ModelConfig
from labkit.model.decoder import Transformer
from labkit.strict import strict_validate
from labkit.train.config import TrainConfig
from labkit.train.optim import learning_rate

RANKS, ROWS, EVERY = 2, 8, 5  # ROWS: of a batch; EVERY: steps between two checkpoints
LIMIT = 10.0  # seconds: the watchdog's, where it is to bark; a busy machine may keep a healthy rank for some of them
LR, TOL = 0.03, 30 * 4e-5
PATIENCE = 150.0  # seconds in which its processes could run, for the next thing that a program is to do
LOWER, BACK, FACTOR = 2, 3, 0.5  # of Recovery: see labkit.train.recovery
PROGRAM = "capstone.drawn"


class Job:
    """One run: what the seed draws.

    bad    batches (from 1) that hold, in a row that one rank alone reads, a token whose embedding is infinite: its loss
           is NaN there. No other batch has the token.
    every, back, factor: EVERY, BACK and FACTOR of this run
    """

    def __init__(
        self,
        seed: int,
        name: str,
        steps: int,
        bad: set[int],
        batches: int,
        every: int = EVERY,
        back: int = BACK,
        factor: float = FACTOR,
    ) -> None:
        self.every, self.back, self.factor = every, back, factor
        self.draw, self.steps, self.bad = Draw(seed, "struck", name), steps, bad
        draw, T = self.draw, self.draw.size(9, 14)
        shape: dict[str, Any] = dict(vocab_size=draw.size(259, 299), d_model=64, n_layers=2, n_heads=4, n_kv_heads=2)
        self.model = ModelConfig(**shape, d_ffn=draw.size(2, 3, times=64), max_seq_len=64)
        self.poison = self.model.vocab_size - 1
        self.weights = {
            name: 1 + draw.normal(*size, scale=0.2) if len(size) == 1 else draw.normal(*size, scale=size[1] ** -0.5)
            for name, size in self.model.weight_shapes().items()
        }
        self.weights["tok_embed.weight"][self.poison] = math.inf
        self.batches = draw.ids(self.poison, batches, ROWS, T + 1)
        spoilt = draw.size(0, RANKS - 1)  # the rank
        for number in bad:
            row = spoilt * ROWS // RANKS + draw.size(0, ROWS // RANKS - 1)
            self.batches[number - 1, row, 0] = self.poison
        self.config = {
            "model": self.model.model_dump(),
            "steps": steps,
            "seq_len": T,
            "batch_size": ROWS,
            "seed": draw.size(0, 2**31),
            "mixed_precision": "fp32",
            "rest": "fp32",
            "lr": LR,
            "weight_decay": 0.5,
            "betas": [0.8, 0.9],
            "adam_eps": EPS,
            "clip_norm": 1.0,
            "eval_every": 0,
            "checkpoint_every": every,
            "hang_after": 0,
            "recovery": {"lower_after": LOWER, "rollback_after": back, "factor": factor},
        }

    def lay(self, place: Site) -> None:
        """Write it where the ranks read it."""
        self.configure(place)
        torch.save(self.weights, place.given / "weights.pt")
        self.forget(place, 0)

    def forget(self, place: Site, last: int) -> None:
        """Give zeros for the batches up to this one to ranks that start from now on: what these taught is in a
        checkpoint, and who trains them anew in place of loading it becomes another run."""
        beside = place.given / "batches.new"
        torch.save(self.batches * (torch.arange(len(self.batches)) >= last)[:, None, None], beside)
        beside.chmod(0o644)
        beside.replace(place.given / "batches.pt")

    def configure(self, place: Site, **changed: Any) -> None:
        """What ranks that start from now on are given."""
        put(place.given / "config.json", json.dumps({**self.config, **changed}))

    def plan(self, unsaved: Collection[int] = ()) -> dict[int, tuple[int, float, bool]]:
        """{step: (batch, rate, whether it is taken)} of what stands in the record at the end, when the checkpoints
        `unsaved` could not be written."""
        plan: dict[int, tuple[int, float, bool]] = {}
        step = shift = row = newest = 0
        rate = 1.0
        while step < self.steps:
            step += 1
            batch = step + shift
            if batch not in self.bad:
                row, plan[step] = 0, (batch, rate, True)
                newest = step if step % self.every == 0 and step not in unsaved else newest
                continue
            row, plan[step] = row + 1, (batch, rate, False)
            rate *= self.factor if row >= LOWER else 1.0
            if row >= self.back:
                plan = {k: v for k, v in plan.items() if k <= newest}
                shift, step, row, unsaved = shift + step - newest, newest, 0, ()
        return plan

    def undisturbed(self, plan: dict[int, tuple[int, float, bool]]) -> dict[int, dict[str, Any]]:
        """{step: {"loss", "weights", "m", "v"}}: one process on the same batches."""
        model = Transformer(self.model)
        model.load_state_dict(self.weights)
        params = dict(model.named_parameters())
        groups = [
            {"params": [p for p in params.values() if p.dim() > 1], "weight_decay": 0.5},
            {"params": [p for p in params.values() if p.dim() == 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=LR, betas=(0.8, 0.9), eps=EPS)
        values = {k: v for k, v in self.config.items() if k not in ("rest", "hang_after")}
        config = strict_validate(TrainConfig, values, "the check's configuration")
        found: dict[int, dict[str, Any]] = {}
        for step, (batch, rate, taken) in sorted(plan.items()):
            rows, loss = self.batches[batch - 1], None
            if taken:
                optimizer.zero_grad()
                loss = model(rows[:, :-1], rows[:, 1:])
                loss.backward()
                grads = [p.grad for p in params.values() if p.grad is not None]
                norm = sum(float(g.double().square().sum()) for g in grads) ** 0.5
                for g in grads:
                    g.mul_(min(1.0, 1.0 / norm))
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(config, step) * rate
                optimizer.step()
            state: dict[str, Any] = {"shards": {name: p.detach().clone() for name, p in params.items()}}
            for kind, key in (("m", "exp_avg"), ("v", "exp_avg_sq")):
                state[kind] = {n: optimizer.state[p].get(key, torch.zeros_like(p)).clone() for n, p in params.items()}
            found[step] = {"loss": None if loss is None else float(loss.detach()), **state}
        return found


# ---- what ranks left


def lines(place: Site, name: str) -> list[dict[str, Any]]:
    """The lines of steps.jsonl or events.jsonl that can be read."""
    try:
        text = place.read("run", name, most=4 << 20).decode("utf-8", "replace")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(one, dict):
            found.append(one)
    return found


def steps(place: Site) -> dict[int, Any]:
    """{step: loss} of the record; -1 is a key if a step stands twice."""
    found: dict[int, Any] = {}
    for line in lines(place, "steps.jsonl"):
        at = line.get("step")
        at = at if isinstance(at, int) and at not in found else -1
        found[at] = line.get("loss")
    return found


def events(place: Site, *kinds: str) -> list[dict[str, Any]]:
    return [one for one in lines(place, "events.jsonl") if one.get("kind") in kinds]


def published(place: Site) -> list[int]:
    """The steps of the checkpoints that are there, the newest first."""
    names = place.names("run", "checkpoints")
    return sorted((int(name[5:]) for name in names if re.fullmatch("step-[0-9]{8}", name)), reverse=True)


def saved(place: Site, step: int, model: ModelConfig) -> dict[str, dict[str, torch.Tensor]] | str:
    """{"shards", "m", "v": {name: whole tensor}} of a checkpoint, read by its manifest; or what is wrong with it."""
    shapes, folder = model.weight_shapes(), ("run", "checkpoints", f"step-{step:08d}")
    try:
        manifest = json.loads(place.read(*folder, "manifest", most=1 << 20))
        if zlib.crc32(manifest["body"].encode()) != manifest["crc32"]:
            return "its manifest does not match its own checksum"
        ranks = json.loads(manifest["body"])["ranks"]
        files = []
        for rank, one in enumerate(ranks[:RANKS]):
            data = place.read(*folder, f"rank-{rank:05d}")
            if (len(data), zlib.crc32(data)) != (one["bytes"], one["crc32"]):
                return f"the file of rank {rank} is not what its manifest says"
            files.append(_tensors(data))
        if len(files) != RANKS:
            return f"it is of {len(files)} ranks"
        found: dict[str, dict[str, torch.Tensor]] = {"shards": {}, "m": {}, "v": {}}
        for unit, tensors in enumerate(ranks[0]["holds"]):
            sizes = [math.prod(shapes[name]) for name, _ in tensors]
            for kind, into in found.items():
                vector = torch.cat([_vector(file[kind][unit], sum(sizes)) for file in files])
                for (name, _), part in zip(tensors, vector[: sum(sizes)].split(sizes)):
                    into[name] = part.view(shapes[name])
        missing = [name for name in shapes if name not in found["shards"]]
        return f"it has no {missing[0]}" if missing else found
    except Exception as error:  # whatever is wrong with bytes that a stranger wrote
        return f"it cannot be read ({type(error).__name__}: {str(error)[:200]})"


def own(place: Site, step: int, key: str) -> list[Any]:
    """By rank what its file of a checkpoint has in `own` under this key; None where that cannot be read."""
    found: list[Any] = []
    for rank in range(RANKS):
        try:
            value = _tensors(place.read("run", "checkpoints", f"step-{step:08d}", f"rank-{rank:05d}"))["own"][key]
        except Exception:  # whatever is wrong with bytes that a stranger wrote
            value = None
        found.append(value if isinstance(value, (int, float, str)) else None)
    return found


def _tensors(data: bytes) -> Any:
    """What torch.save wrote, uncompressed: a few packed bytes may unpack to more than the judge's memory."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        if sum(one.file_size for one in file.infolist()) > len(data):
            raise ValueError("its parts are larger than the file")
        if any(b"bytearray" in file.read(one) for one in file.infolist() if one.filename.endswith(".pkl")):
            raise ValueError("it asks for memory that it does not fill")
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _vector(found: Any, most: int) -> torch.Tensor:
    """A rank's vector, if it is a plain one; no code, no view of memory that is not there."""
    if type(found) is not torch.Tensor or found.dim() != 1 or len(found) > most or not found.is_contiguous():
        raise ValueError("a rank's vector has another form")
    return found.float()


def off(got: dict[str, dict[str, torch.Tensor]], want: dict[str, Any], poison: int) -> tuple[str, float]:
    """(what, how far) of what is farthest from the undisturbed run, in units of that tensor's norm. The row of the
    token that nobody trains is left out."""
    worst = ("nothing", 0.0)
    for kind in ("shards", "m", "v"):
        for name, value in want[kind].items():
            mine, right = got[kind][name].double(), value.double()
            if name == "tok_embed.weight":
                mine, right = mine[:poison], right[:poison]
            by = float((mine - right).norm() / right.norm().clamp(min=1e-12))
            by = by if math.isfinite(by) else math.inf
            if by > worst[1]:
                worst = (f"{name} ({ {'shards': 'weights', 'm': 'first moment', 'v': 'second moment'}[kind] })", by)
    return worst


# ---- from outside


def gate(place: Site, rank: int, batch: int | None) -> None:
    """A rank may read batches up to this one from now on; None: all."""
    path = place.given / f"until-{rank}"
    if batch is None:
        path.unlink(missing_ok=True)
    else:
        put(path, str(batch))


def put(path: Path, text: str) -> None:
    """Write a file that the ranks read meanwhile."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.chmod(0o644)
    beside.replace(path)


def until(place: Site, true: Callable[[], Any]) -> Any:
    """What `true()` gives as soon as it is something; None when torchrun has ended and it is not true, or its processes
    could run for PATIENCE seconds."""
    able = place.able()
    while True:
        gone = not place.running
        if found := true():
            return found
        if gone or able.look(place.processes()) > PATIENCE:
            return None
        time.sleep(0.05)


def ended(place: Site) -> int | None:
    """torchrun's exit status; None if it does not end."""
    until(place, lambda: not place.running)
    return place.wait(0)


def reached(place: Site, step: int, after: int = 0) -> bool:
    """Whether the run comes to the line of this step, after so many starts from a checkpoint."""

    def there() -> bool:
        return len(events(place, "resume")) >= after and step in steps(place)

    return bool(until(place, there))


class Looks:
    """What the watchdog of a rank that waits for a stopped one has posted since: how long its rank had stood in the
    call at each of its looks."""

    def __init__(self, place: Site, rank: int) -> None:
        self.place, self.name, self.stood = place, f"rank-{rank:05d}", dict[int, float]()

    def late(self) -> bool:
        """Whether it has looked when the limit was over and the other had been silent for half of it, and again: who
        acts at the first such look never posts the second."""
        for start in self.place.names("run", "standing")[-1:]:
            with suppress(OSError, ValueError, KeyError, TypeError):
                one = json.loads(self.place.read("run", "standing", start, self.name, most=1 << 16))
                if one["call"]:
                    self.stood[int(one["beat"])] = float(one["stood"])
        due = max(LIMIT, min(self.stood.values(), default=0.0) + LIMIT / 2)
        return sum(stood >= due for stood in self.stood.values()) > 1
