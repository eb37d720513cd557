"""Nothing of a lesson stays in the system's temporary folder: pictures, ranks, checks, training, and these tests."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import week13_allreduce
from tests import warm

pytestmark = pytest.mark.thorough

ROOT = Path(week13_allreduce.__file__).parents[1]
PICTURES = """
import os, tempfile
from week13_allreduce import collectives
from week13_allreduce.given import experiments, pictures
states = experiments.filling(collectives.ring_all_reduce, 2)
first, second = pictures.chunk_grid(states), pictures.chunk_grid(states[:2])
assert first.png != second.png and first.png.exists() and second.png.exists()       # none overwrites another
assert len(os.listdir(tempfile.gettempdir())) == 1, os.listdir(tempfile.gettempdir())
if os.fork() == 0:                                  # a child that ends must not take its parent's pictures along
    pictures.chunk_grid(states)
    raise SystemExit
os.wait()
assert first.png.exists()
END
"""
TRAINING = """
import os
from pathlib import Path
from labkit.comm.ranks import run_ranks
from labkit.train.job import train_job
if __name__ == "__main__":
    model = dict(vocab_size=320, d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, d_ffn=16, max_seq_len=16)
    config = dict(model=model, data={"source": [HERE + "/text"], "heldout_fraction": 0.2}, steps=1, seq_len=16,
                  batch_size=2, eval_every=0, precision={"backend": "fp32"})
    os.environ["LABKIT_CACHE"] = HERE + "/cache"
    run_ranks(train_job, config, Path(HERE) / "run", size=2, timeout=None)
    END
"""


@pytest.fixture
def scratch():
    """A temporary folder with a short name: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="left-") as folder:
        yield Path(folder)


def run(program, scratch, tmp_path, end="pass"):
    """What lies in the temporary folder when the program is over, and its end. With another `end` it has torch already
    when it starts."""
    file = tmp_path / "program.py"
    file.write_text(program.replace("END", end).replace("HERE", repr(str(tmp_path))))
    # matplotlib looks for fonts once and keeps what it found: 5 s, shared by these programs.
    caches = {"MPLCONFIGDIR": str(tmp_path.parent / "mpl"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    environment = {**os.environ, **caches, "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if end == "pass":
        done = subprocess.run(
            [sys.executable, str(file)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
    else:
        done = warm.python(file, cwd=tmp_path, env=environment)
    return sorted(os.listdir(scratch)), done


@pytest.mark.parametrize("end", ["pass", "raise RuntimeError('a cell that failed')"])
def test_pictures_without_a_folder_go_with_their_process(end, scratch, tmp_path):
    left, done = run(PICTURES, scratch, tmp_path, end)
    assert left == [], left
    assert (done.returncode != 0) == (end != "pass") and "Assertion" not in done.stderr, done.stderr


@pytest.mark.parametrize("end", ["pass", "raise RuntimeError('later')"])
def test_training_on_ranks(end, scratch, tmp_path):
    (tmp_path / "text").mkdir()
    for k in range(40):
        lines = "".join(f"def f{i}_{k}(x):\n    return x * {k} + {i}\n" for i in range(30))
        (tmp_path / "text" / f"m{k}.py").write_text(lines)
    left, done = run(TRAINING, scratch, tmp_path, end)
    assert left == [], left
    assert (done.returncode != 0) == (end != "pass") and "run_ranks" not in done.stderr.split("later")[0], done.stderr
    assert (tmp_path / "run" / "run.json").exists()


def test_a_check(scratch, tmp_path):
    program = (
        f"import os; os.chdir({str(ROOT)!r})\nfrom labkit.cli import main\nmain(['check', '13.3', '--seed', '1'])\n"
    )
    left, done = run(program, scratch, tmp_path, "")
    assert left == [], left
    assert done.returncode == 0 and "10 of 10" in done.stdout, done.stdout + done.stderr
