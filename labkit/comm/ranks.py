"""`run_ranks`: the same function on N ranks: threads, processes of this machine, or torchrun's on one machine or many."""

import os
import re
from collections.abc import Callable
from typing import Any

from labkit.comm.autopsy import RanksFailed, Results
from labkit.comm.processes import RankPool, check_size, check_timeout
from labkit.errors import LabError

BACKENDS = ("threads", "processes", "torchrun")
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")


def under_torchrun() -> bool:
    """Whether torchrun (or a launcher that sets the same variables) started this process as one of several ranks.
    LabError where they name no rank, as a Kubernetes service's MASTER_PORT, `tcp://10.3.0.1:29500`."""
    if not all(name in os.environ for name in LAUNCHED):
        return False
    given = {name: os.environ[name] for name in (*LAUNCHED, *LOCAL) if name in os.environ}
    number = {name: int(text) if text.isdecimal() else -1 for name, text in given.items() if name != "MASTER_ADDR"}
    sound = min(number.values()) >= 0 and number["RANK"] < number["WORLD_SIZE"] and 0 < number["MASTER_PORT"] < 2**16
    sound = sound and number.get("LOCAL_WORLD_SIZE", 1) > 0
    if not (sound and re.fullmatch(r"[^\s\[\]]+", given["MASTER_ADDR"])):
        said = ", ".join(f"{name}={text!r}" for name, text in given.items())
        raise LabError(f"{said} name no rank of a launcher: unset {', '.join(given)}, or start with torchrun")
    return True


def launched(ranks: int | None = None) -> int | None:
    """How many ranks a launcher started; None where none did. LabError if `ranks`, a command's --ranks, is another number."""
    if not under_torchrun():
        return None
    world = int(os.environ["WORLD_SIZE"])
    if ranks not in (None, world):
        alone = f"to start {ranks} here, unset {', '.join(name for name in (*LAUNCHED, *LOCAL) if name in os.environ)}"
        raise LabError(f"--ranks {ranks} is not the launcher's WORLD_SIZE={world}: leave --ranks out, or {alone}")
    return world


def is_first() -> bool:
    """Whether this process is the one that prints and writes: torchrun's rank 0, or the only one."""
    return not under_torchrun() or int(os.environ["RANK"]) == 0


def local_rank() -> int:
    """This rank's place on its machine; 0 where nothing launched it."""
    return int(os.environ.get("LOCAL_RANK", os.environ["RANK"])) if under_torchrun() else 0


def of_this_machine(ranks: int) -> int:
    """How many of `ranks` are on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) if under_torchrun() else ranks


def run_ranks(
    fn: Callable,
    *args: Any,
    size: int | None = None,
    backend: str | None = None,
    timeout: float | None = 5.0,
    device: str = "cpu",
) -> Results:
    """Run `fn(group, *args)` on every rank and return what each returned.

        run_ranks(lambda group: group.all_reduce(torch.tensor([group.rank])), size=4)      # 4 times tensor([6])

    fn        on processes it is sent: by name if it can be imported, else by value, with the globals that it uses
    size      how many ranks; 4 if not given, or torchrun's
    backend   "threads", "processes", "torchrun"; None: torchrun if it started us, else processes
    timeout   seconds until the run is ended with an autopsy, counted from when all ranks have imported what they need
              (a busy machine gives processes longer); None: only a rank that raises or dies, or a certain deadlock
    device    "cpu" (gloo), or "cuda" (NCCL, rank r on GPU r of its machine)

    Results is a list by rank, with `.ledgers`. Tensors come back by value, on the CPU. Under torchrun every rank calls
    run_ranks and every rank gets all results, so return small things there.
    Raises RanksFailed (a LabError) with `.autopsy`, or LabError if the ranks could not be started.
    """
    if backend is None:
        backend = "torchrun" if under_torchrun() else "processes"
    if backend not in BACKENDS:
        raise LabError(f"backend={backend!r} is unknown: choose one of {', '.join(BACKENDS)}")
    if not callable(fn):
        raise LabError(f"run_ranks needs a function fn(group, *args); got {type(fn).__name__}")
    check_size(size)
    check_timeout(timeout)
    if device not in ("cpu", "cuda"):
        raise LabError(f"device={device!r} is unknown: choose 'cpu' or 'cuda' (rank r then takes GPU r)")
    if backend == "threads" and device != "cpu":
        raise LabError("ranks on threads move CPU tensors only: device='cuda' needs backend='processes' or 'torchrun'")
    try:
        if backend == "torchrun":
            if not under_torchrun():
                raise LabError(f"backend='torchrun' needs a program started by torchrun --nproc-per-node {size or 4}")
            from labkit.comm import torchrun

            return torchrun.run(fn, args, size, timeout, device)
        if backend == "threads":
            from labkit.comm import threads

            return threads.run(fn, args, size or 4, timeout)
        with RankPool(size or 4, device=device) as pool:
            return pool.run(fn, *args, timeout=timeout)
    except RanksFailed as error:
        raise error.with_traceback(None) from None  # it says what happened; the way out of here does not
