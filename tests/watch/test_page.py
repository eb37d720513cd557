"""`lab watch` in a real browser, while a training is killed, resumed and blown up."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from labkit.record.read import read_run
from labkit.record.run import RunRecord
from tests.browser import START, browser, chromium
from tests.gated import Gate
from tests.waiting import until
from tests.watch.lines import lines, write

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(600),  # a browser, a server and a training come up one after another, on a machine that is busy
    pytest.mark.skipif(importlib.util.find_spec("panel") is None, reason="Panel is not installed: make watch"),
    pytest.mark.skipif(chromium() is None, reason="Chromium is not installed: apt install chromium"),
]
ROOT = Path(__file__).resolve().parents[2]
# All figures of the page, through the shadow roots in which Bokeh draws.
FIND = """(() => { const found = []; const go = n => { if (n.nodeType === 1 || n instanceof ShadowRoot) {
  if (n.matches && n.matches('SELECTOR')) found.push(n);
  if (n.shadowRoot) go(n.shadowRoot); for (const c of n.children) go(c); } };
  go(document.body); return found; })()"""
SEEN = FIND.replace("SELECTOR", ".lab-head, .lab-alarms") + ".map(e => e.innerText).join(' | ')"
MODELS = "Bokeh.documents[0]._all_models"


def figures(words: str) -> str:
    """JavaScript: `words` of every figure f with a title."""
    return f"[...{MODELS}.values()].filter(f => f.type === 'Figure').map(f => {words})"


def points(title: str) -> str:
    """JavaScript: how many points the first curve of a figure has."""
    return (
        f"[...{MODELS}.values()].filter(f => f.type === 'Figure' && f.title.text.startsWith('{title}'))[0]"
        ".renderers.filter(r => r.glyph.type === 'Line')[0].data_source.data.x.length"
    )


@contextmanager
def served(run: Path, log: Path, port: int = 0):
    """`lab watch` on this folder; gives its address."""
    words = [sys.executable, "-m", "labkit", "watch", str(run), "--port", str(port), "--no-browser"]
    with log.open("w") as out:
        process = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    try:
        end = time.monotonic() + START
        while not (found := re.search(r"http://localhost:(\d+)/", log.read_text())):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield found[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(START) == 0 and "Traceback" not in log.read_text(), log.read_text()


def train(run: Path, *more: str, **environment: str) -> subprocess.Popen:
    words, nowhere = [sys.executable, "-m", "tests.watch.training", str(run), *more], subprocess.DEVNULL
    own = {**os.environ, **environment}
    return subprocess.Popen(words, cwd=ROOT, env=own, stdout=nowhere, stderr=nowhere, start_new_session=True)


def steps(run: Path) -> int:
    return len(read_run(run).steps) if (run / "run.json").exists() else 0


def wide(page, width: int, height: int) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 700)


def test_a_training_is_watched_while_it_is_killed_resumed_and_blown_up(tmp_path):
    run, log = tmp_path / "run", tmp_path / "log"
    keep = Path(os.environ.get("LABKIT_PICTURES") or tmp_path)
    process = train(run)
    try:
        until(lambda: steps(run) > 30)
        with browser(tmp_path / "chromium") as tab, served(run, log) as address:
            page = tab()
            wide(page, 1400, 2200)
            page.open(address)
            page.wait(f"{SEEN}.includes('running')")
            before = page.js(points("Loss"))
            page.wait(f"{points('Loss')} > {before}")
            assert "not recorded" not in " ".join(page.js(figures("f.title.text"))[:8])
            page.picture(keep / "healthy.png")

            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            page.wait(f"{SEEN}.includes('interrupted') && {SEEN}.includes('has no writer any more')")
            done = steps(run)
            page.wait(f"{points('Loss')} === {done}")

            gate = Gate(tmp_path / "gate", run.name, done + 5)  # until the page has seen that it runs
            process = train(run, "--spoil", str(done + 30), **gate.environment)
            page.wait(f"{SEEN}.includes('running')")
            gate.open()
            page.wait(f"{SEEN}.includes('not finite')")
            page.wait(f"{SEEN}.includes('rolled back')")
            process.wait(START)
            page.wait(f"{SEEN}.includes('finished') && {SEEN}.includes('stopped')")
            assert "resume" in page.js(
                f"[...{MODELS}.values()].map(m => JSON.stringify(m.data && m.data.kind || '')).join()"
            )
            page.picture(keep / "sick.png")

            # On a phone nothing is wider than the screen.
            phone = tab()
            wide(phone, 390, 3600)
            phone.open(address)
            phone.wait(f"{SEEN}.includes('rolled back')")
            time.sleep(1)
            phone.picture(keep / "phone.png")
            assert phone.js("document.documentElement.scrollWidth") <= 390
            assert not page.errors and not phone.errors
        # Whoever starts the page anew sees the same, from the folder alone.
        with browser(tmp_path / "again") as tab, served(run, tmp_path / "log2") as address:
            page = tab()
            page.open(address)
            page.wait(f"{SEEN}.includes('rolled back') && {SEEN}.includes('stopped')")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_the_page_comes_back_when_its_server_does_and_escapes_what_a_record_says(tmp_path):
    wicked = '<img src=x onerror="window.ran=1"><script>window.ran=1</script>'
    run = write(tmp_path / "run", lines(50), [{"kind": "failed", "step": 3, "message": wicked}], status="failed")
    with browser(tmp_path / "chromium") as tab:
        page = tab()
        with served(run, tmp_path / "log") as address:
            page.open(address)
            page.wait(f"{SEEN}.includes('failed') && {SEEN}.includes('onerror')")
        port = int(re.search(r":(\d+)/", address)[1])
        write(run, lines(80), [], status="failed")
        with served(run, tmp_path / "log2", port):
            page.wait(f"{SEEN}.includes('step 80')")
        assert page.js("window.ran === undefined") and not page.dialogs


def test_a_hundred_thousand_steps_stay_fluid_and_a_stretch_shows_its_points(tmp_path):
    some = lines(1000)
    many = [{**some[i % 1000], "step": i + 1} for i in range(100_000)]
    many[61_233]["loss"] = 77.0
    run = write(tmp_path / "run", many)
    with browser(tmp_path / "chromium") as tab, served(run, tmp_path / "log") as address:
        page = tab()
        wide(page, 1400, 2200)
        page.open(address)
        page.wait(f"{SEEN}.includes('step 100,000') && !{SEEN}.includes('still reading')")
        loss = points("Loss")
        page.wait(f"{loss} > 2000")
        assert page.js(loss) <= 4002 and page.js(loss.replace(".x.length", ".y.includes(77)")), "the one spike is seen"
        assert max(page.js(figures("Math.max(...f.renderers.map(r => r.data_source?.data.x?.length || 0))"))) <= 4002
        buttons = FIND.replace("SELECTOR", "button")
        page.js(buttons + ".filter(b => b.innerText.includes('last 200'))[0].click()")
        page.wait(f"{loss} < 300 && {loss} >= 200")


def test_a_comparison_shows_the_training_at_work(tmp_path):
    out = write(
        tmp_path / "c", [], kind="compare", config={"arms": {"bf16": {"label": "BF16"}, "fp8": {"label": "FP8"}}}
    )
    write(out / "arms" / "bf16", lines(60))
    with RunRecord.create(out / "arms" / "fp8", kind="train", config={"steps": 90}, hardware={}) as record:
        record.step(step=1, loss=3.0, seconds=0.1)
        with browser(tmp_path / "chromium") as tab, served(out, tmp_path / "log") as address:
            page = tab()
            page.open(address)
            page.wait(f"{SEEN}.includes('FP8') && {SEEN}.includes('step 1 of 90')")
            select = FIND.replace("SELECTOR", "select") + ".filter(s => s.innerText.includes('BF16'))[0]"
            page.js(
                f"(() => {{ const s = {select}; s.value = [...s.options].find(o => o.text === 'BF16').value; "
                "s.dispatchEvent(new Event('change')); })()"
            )
            page.wait(f"{SEEN}.includes('BF16') && {SEEN}.includes('step 60')")
