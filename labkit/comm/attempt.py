"""One start of the ranks under torchrun: where they meet, and a part of the store that is this start's alone."""

import os
import sys
import threading
import time
import uuid
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from labkit.errors import LabError

PATIENCE = timedelta(minutes=10)  # a start that does not come together in it ends
SAYS = 10.0  # seconds until it is said for whom a rank waits


class Attempt:
    """This process's rank in one start. `store()` makes a connection to this start's part of the store.

    LabError if the ranks did not all come within PATIENCE."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.address, self.port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self.missing: list[int] | None = None  # None: nothing has answered yet
        # With the agent's store nobody serves one; otherwise rank 0 does, unless its program already has.
        agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        serves = self.rank == 0 and not agents and not dist.is_initialized()
        said = threading.Timer(SAYS, lambda: print(f"labkit: {self._waits(SAYS)}", file=sys.stderr, flush=True))
        said.daemon = True
        said.start()
        try:
            self._base = self._connect(serves)
            self.name = self._agree(self._base)
        except (dist.DistError, OSError) as error:
            first = str(error).strip().splitlines()[0]
            raise LabError(f"{self._waits(PATIENCE.total_seconds())}; gave up: {first}") from None
        finally:
            said.cancel()

    def store(self) -> dist.Store:
        return dist.PrefixStore(f"labkit/{self.name}", self._connect(False))

    def _connect(self, serves: bool) -> dist.TCPStore:
        how: dict[str, Any] = dict(is_master=serves, wait_for_workers=False, multi_tenant=True, timeout=PATIENCE)
        return dist.TCPStore(self.address, self.port, self.size, **how)

    def _agree(self, store: dist.Store) -> str:
        # torchrun starts dead ranks again on the store of the first time, where keys of the dead are still, and its
        # restart count begins anew. So each leaves a random word; rank 0 proposes all words that it finds; who finds
        # their own agrees.
        self.missing = list(range(self.size))
        came = [f"labkit/came/{rank}" for rank in self.missing]
        word, proposed, until = uuid.uuid4().hex, "", time.monotonic() + PATIENCE.total_seconds()
        store.set(came[self.rank], word)
        while time.monotonic() < until:
            if self.rank == 0 and not (here := [key for key in came if not store.check([key])]):
                words = ".".join(store.get(key).decode() for key in came)
                if words != proposed:
                    proposed = words
                    store.set("labkit/proposed", words)
            elif self.rank == 0:
                self.missing = [came.index(key) for key in here]
            words = store.get("labkit/proposed").decode() if store.check(["labkit/proposed"]) else ""
            if word in words.split("."):
                name = uuid.uuid5(uuid.NAMESPACE_OID, words).hex
                agreed = [f"labkit/{name}/agreed/{rank}" for rank in range(self.size)]
                store.set(agreed[self.rank], "1")
                if store.check(agreed):
                    return name
                self.missing = [rank for rank, key in enumerate(agreed) if not store.check([key])]
            time.sleep(0.02)
        raise OSError("not all ranks came")

    def _waits(self, seconds: float) -> str:
        others = ", ".join(str(rank) for rank in self.missing or () if rank != self.rank)
        whom = f"rank {others}" if self.missing is not None else "an answer"
        return (
            f"rank {self.rank} of {self.size} has waited {seconds:.0f} s for {whom} at {self.address}:{self.port}, "
            "since RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set; if no launcher started the others, unset them"
        )
