"""`lab watch RUN`: a small web server for the health page, on this machine alone unless `--address` says otherwise."""

import importlib.util
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.errors import LabError

MISSING = "the health page needs Panel, which is not installed: `make watch`, or pip install 'panel>=1.9,<2'"


def serve(run: Path, port: int, address: str, show: bool, say: Callable[[str], Any], mine: bool = False) -> None:
    """Serve the page of `run` until Ctrl-C. port 0: any free one; say: called with the address. LabError: no run."""
    from labkit.watch.source import Source

    source = Source(run, mine)  # before Panel, which takes seconds to import
    port = _free(address, port)
    pn = import_panel()
    from labkit.watch.page import document

    shown = "localhost" if address in ("127.0.0.1", "0.0.0.0") else address
    origins = [f"{host}:{port}" for host in dict.fromkeys((shown, "localhost", "127.0.0.1", address))]
    server = pn.serve(
        {"/": lambda: document(source)},
        port=port,
        address=address,
        title=f"{run.name}: health",
        show=show,
        start=False,
        verbose=False,
        websocket_origin=["*"] if address == "0.0.0.0" else origins,
    )
    say(f"{run} is shown at http://{shown}:{port}/ (Ctrl-C ends the page, not the run)")
    server.start()
    with suppress(KeyboardInterrupt):
        server.io_loop.start()
    server.stop()


def import_panel() -> Any:
    if importlib.util.find_spec("panel") is None:
        raise LabError(MISSING)
    return importlib.import_module("panel")


def _free(address: str, port: int) -> int:
    """Return `port`, if one can listen there; any free one for 0."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            return probe.getsockname()[1]
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise LabError(f"cannot listen at {address}:{port}: {why}; --port 0 takes a free one") from None
