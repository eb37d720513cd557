"""A real browser for tests: headless Chromium by its DevTools protocol, and a Jupyter server beside it.

Nothing is downloaded and no driver is needed: the protocol is JSON over a websocket, and `websocket-client` comes with
JupyterLab. Both programs choose free ports themselves."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
START = 100  # seconds for a program to come up on a busy machine


def chromium() -> str | None:
    """The browser's path; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab."""

    def __init__(self, address: str) -> None:
        import websocket

        self._socket = websocket.create_connection(address, timeout=START, suppress_origin=True)
        self._number = itertools.count(1)
        self.errors: list[str] = []  # what the page's scripts threw
        self.dialogs: list[str] = []  # alert() and the like
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol and its result."""
        number = next(self._number)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._event(message)

    def _event(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Page.javascriptDialogOpening":
            self.dialogs.append(message["params"]["message"])
            accept = {"method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
            self._socket.send(json.dumps({"id": next(self._number), **accept}))
        elif message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(message["params"]["exceptionDetails"])[:500])
        elif message.get("method") == "Network.responseReceived" and message["params"]["response"]["status"] >= 500:
            response = message["params"]["response"]
            self.errors.append(f"{response['status']} from {response['url']}")
        elif message.get("method") == "Network.loadingFailed" and not message["params"].get("canceled"):
            self.errors.append(f"a request failed: {message['params']['errorText']}")

    def open(self, address: str) -> None:
        self.js("window.stale = true")  # the page before is complete as well, until it goes
        went = self.call("Page.navigate", url=address)
        if "errorText" in went:
            raise RuntimeError(f"{address}: {went['errorText']}")
        self.wait("window.stale === undefined && document.readyState === 'complete'")

    def close(self) -> None:
        """End the tab, with what it still asks for."""
        with contextlib.suppress(RuntimeError, OSError):
            self.call("Page.close")
        self._socket.close()

    def js(self, expression: str) -> Any:
        """The value of a JavaScript expression. Waits for a promise."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait(self, expression: str, seconds: float = START) -> Any:
        """Wait until an expression is true, and return it."""
        end = time.monotonic() + seconds
        while True:
            with contextlib.suppress(RuntimeError):  # while the page changes
                if value := self.js(expression):
                    return value
            if time.monotonic() > end:
                raise TimeoutError(f"{expression} did not become true; errors on the page: {self.errors}")
            time.sleep(0.1)

    def click(self, selector: str) -> None:
        """A real click in the middle of an element."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null")
        box = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center', behavior: 'instant'}); "
            "const r = e.getBoundingClientRect(); return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def type(self, selector: str, text: str) -> None:
        """Click into a field, type over what is there, and leave it."""
        self.click(selector)
        self.js(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)
        self.js("document.activeElement.blur()")

    def text(self, selector: str = "body") -> str:
        return self.js(f"document.querySelector({json.dumps(selector)}).innerText")

    def picture(self, path: Path, selector: str | None = None) -> None:
        """A PNG of the page, or of the part that shows an element."""
        clip = {}
        if selector:
            box = self.js(
                f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
                "const r = e.getBoundingClientRect(); "
                "return {x: r.x + scrollX, y: r.y + scrollY, width: r.width, height: r.height}; })()"
            )
            clip = {"clip": {**box, "scale": 1}, "captureBeyondViewport": True}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **clip)["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Callable[[], Page]]:
    """Headless Chromium with its own profile in `folder`; gives a function that opens a tab. It reaches no network."""
    folder.mkdir(parents=True, exist_ok=True)
    off = [f"--disable-{what}" for what in ("gpu", "dev-shm-usage", "background-networking", "component-update")]
    alone = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE localhost , EXCLUDE 127.0.0.1"
    words = [chromium(), "--headless=new", "--no-sandbox", "--no-first-run", *off, "--remote-debugging-port=0", alone]
    words += [f"--user-data-dir={folder}", "--window-size=1200,1000", "about:blank"]
    with _program(words, folder / "log", env={**os.environ, "HOME": str(folder)}) as process:
        port = _wait(lambda: (folder / "DevToolsActivePort").read_text().split()[0], process, folder / "log")

        def tab() -> Page:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
            with urllib.request.urlopen(request, timeout=START) as answer:
                return Page(json.load(answer)["webSocketDebuggerUrl"])

        yield tab


@contextlib.contextmanager
def jupyter(course: Path, folder: Path, token: str) -> Iterator[str]:
    """A JupyterLab server in the course directory, as an instructor starts it; gives its address."""
    runtime = folder / "runtime"
    runtime.mkdir(parents=True)
    words = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    words += ["--ServerApp.port=0", f"--IdentityProvider.token={token}"]
    own = {f"JUPYTER_{what.upper()}_DIR": str(folder / what) for what in ("runtime", "config", "data")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, **own, "HOME": str(folder), "PATH": path}
    with _program(words, folder / "log", cwd=course, env=env) as process:

        def address() -> str:
            found = json.loads(next(runtime.glob("jpserver-*.json")).read_text())["url"]
            with urllib.request.urlopen(f"{found}api", timeout=5):
                return found.rstrip("/")

        yield _wait(address, process, folder / "log")


@contextlib.contextmanager
def _program(words: list[str], log: Path, **more: Any) -> Iterator[subprocess.Popen]:
    with log.open("wb") as out:
        process = subprocess.Popen(
            words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, **more
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=START)


def _wait(what: Callable[[], str], process: subprocess.Popen, log: Path) -> str:
    end = time.monotonic() + START
    while True:
        with contextlib.suppress(OSError, ValueError, IndexError, StopIteration, KeyError):
            return what()
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{process.args[0]} did not come up: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)
