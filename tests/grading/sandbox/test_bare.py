"""A task judged without torch, in the sandbox: there is nothing of it to find, whatever a submission does."""

import pytest

from grading.sandbox.runner import SandboxRunner, parts_of
from labkit.checks import load_week, run_checks
from tests.checks.test_bare import BITS, make
from tests.grading.sandbox.attacking import DEADLINE, ROOT, readable

# The finder that refuses is taken away; then torch is looked for as Python does, as a file, and as a library.
ATTACK = """
import sys, os, site, ctypes
sys.meta_path[:] = [finder for finder in sys.meta_path if "labkit" not in getattr(finder, "__module__", "")]

def double(x, scale=2):
    {body}
    return x * x.dtype.type(scale)
"""
WAYS = {
    "loads its library": "import numpy; top = os.path.dirname(os.path.dirname(numpy.__file__)); "
    "ctypes.CDLL(os.path.join(top, 'torch', 'lib', 'libtorch_cpu.so'))",
    "starts an interpreter": "import subprocess; "
    "find = 'import sys; from importlib.util import find_spec; sys.path[:] = sys.argv[2:]; "
    "open(find_spec(sys.argv[1]).origin)'; "
    "subprocess.run([sys.executable, '-c', find, 'torch', *sys.path], check=True)",
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    folder = readable(tmp_path_factory.mktemp("student"))
    week = load_week(make(folder))
    path = folder / week.package / "bits.py"

    def run(text, off=frozenset()):
        path.write_text(text)
        with SandboxRunner(folder, parts=parts_of(week), deadline=DEADLINE, budget=1000.0, off=off) as runner:
            return run_checks(["93.1", "93.2"], weeks=[week], runner=runner, seed=3)

    return run


def test_an_honest_one_earns_all(judged):
    outcome = judged(BITS)
    assert outcome.full, [case.text for case in outcome.cases]


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_what_is_hidden_is_not_there(judged, way):
    attack = ATTACK.format(body=WAYS[way])
    first = judged(attack).of("93.1")[0]
    assert first.verdict == "crashed", first.text
    assert judged(attack, frozenset({"packages"})).of("93.1")[0].verdict == "passed", "the defence is what stops it"


@pytest.mark.thorough
def test_a_file_whose_import_does_not_end_is_named_and_no_place_of_this_machine(judged):
    text = judged("while True: pass\n").of("93.1")[0].text
    assert "importing bits.py, or the call, does not end" in text
    assert "bare.py" not in text and str(ROOT) not in text and "/" not in text.partition("\n\n")[0]
