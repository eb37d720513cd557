"""The corpus: same text, same tokens, everywhere; and a cache that many processes can want at once."""

import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from labkit.errors import LabError
from labkit.train.data import corpus as corpora
from labkit.train.data.corpus import Corpus, build_corpus
from labkit.train.data.sources import DataConfig, _hash, find_files
from tests.waiting import until

SOURCE = "def return for in if else while import class self value tensor rank loss step print range None True"
WORDS = SOURCE.split()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A folder of 60 small files in three folders."""
    root = tmp_path / "text"
    for i in range(60):
        draw = random.Random(i)
        file = root / f"part{i % 3}" / f"file{i}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{' '.join(draw.choices(WORDS, k=9))} {draw.randrange(1000)}\n" for _ in range(25)))
    return root


def config(root: Path, **changes) -> DataConfig:
    return DataConfig(**{"source": [str(root)], "vocab_size": 400, "heldout_fraction": 0.2, **changes})


@pytest.fixture
def corpus(text: Path, tmp_path: Path) -> Corpus:
    return build_corpus(config(text), tmp_path / "cache")


# ---- what is in it


def decoded(corpus: Corpus, split: str) -> str:
    tokenizer = Tokenizer.from_file(str(corpus.path / "tokenizer.json"))
    return tokenizer.decode(getattr(corpus, split).tolist(), skip_special_tokens=False)


def test_every_file_is_there_in_order_with_its_end(corpus: Corpus, text: Path) -> None:
    for split in ("train", "heldout"):
        want = "".join((text / name).read_text() + "<|end|>" for name in corpus.files[split])
        assert decoded(corpus, split) == want
        assert int((getattr(corpus, split) == 0).sum()) == len(corpus.files[split])
        assert corpus.bytes[split] == len(want) - 7 * len(corpus.files[split])
    assert corpus.vocab_size == 400 and corpus.train.dtype == np.uint16
    assert len(corpus.train) < corpus.bytes["train"] / 2, "the vocabulary joins bytes"
    assert sorted(corpus.files["train"] + corpus.files["heldout"]) == sorted(
        p.relative_to(text).as_posix() for p in text.rglob("*.py")
    )


def test_a_large_vocabulary_takes_four_bytes(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = corpora.train_tokenizer

    def large(texts, vocab_size):
        """The small vocabulary, and 70,000 entries before one that this text uses."""
        tokenizer = small(texts, vocab_size)
        tokenizer.add_tokens([f"<{i}>" for i in range(70_000)] + ["self class"])
        return tokenizer

    monkeypatch.setattr(corpora, "train_tokenizer", large)
    corpus = build_corpus(config(text), tmp_path / "cache")
    assert corpus.train.dtype == np.uint32 and corpus.train.max() > 1 << 16 and corpus.vocab_size == 70_401
    assert decoded(corpus, "train").startswith((text / corpus.files["train"][0]).read_text())


def test_the_same_text_elsewhere_is_the_same_corpus(corpus: Corpus, text: Path, tmp_path: Path) -> None:
    """Another folder, other times, files created in another order: the order and the split are the paths' alone."""
    elsewhere = tmp_path / "another" / "place"
    for path in sorted(text.rglob("*.py"), reverse=True):
        target = elsewhere / path.relative_to(text)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text())
    other = build_corpus(config(elsewhere), tmp_path / "other cache")
    assert (other.hash, other.files) == (corpus.hash, corpus.files)


def test_the_hash_sees_one_changed_character(corpus: Corpus, text: Path, tmp_path: Path) -> None:
    for split in ("train", "heldout"):
        path = text / corpus.files[split][3]
        before = path.read_text()
        path.write_text("X" + before[1:])
        assert build_corpus(config(text), tmp_path / "cache").hash != corpus.hash, split
        path.write_text(before)


def test_the_split_is_the_path_hash(corpus: Corpus, text: Path, tmp_path: Path) -> None:
    assert corpus.files["heldout"] and all(_hash("split", f) < 0.2 * 2**64 for f in corpus.files["heldout"])
    assert not any(_hash("split", f) < 0.2 * 2**64 for f in corpus.files["train"])
    (text / "new.py").write_text("a new file moves no other\n" * 9)
    more = build_corpus(config(text), tmp_path / "cache")
    for split in ("train", "heldout"):
        assert [f for f in more.files[split] if f != "new.py"] == corpus.files[split]
    # Known answers: a change of the hash would silently mix train and held-out text between versions.
    names = ("abc.py", "os.py", "json/decoder.py", "typing.py", "ast.py", "re/_parser.py")
    assert [n for n in names if _hash("split", n) < 0.2 * 2**64] == ["json/decoder.py", "ast.py", "re/_parser.py"]
    for fraction, at in ((0.001, 0), (0.999, -1)):  # neither side is empty
        sides = build_corpus(config(text, heldout_fraction=fraction), tmp_path / "cache").files.values()
        ordered = sorted((name for names in sides for name in names), key=lambda n: _hash("split", n))
        assert min(sides, key=len) == [ordered[at]], "the nearest to the line between the sides"


def test_copies_are_read_once_and_held_out_wins(text: Path, tmp_path: Path, corpus: Corpus) -> None:
    heldout = corpus.files["heldout"][0]
    copy = next(f"copy{i}.py" for i in range(99) if _hash("split", f"copy{i}.py") > 0.2 * 2**64)
    shutil.copy(text / heldout, text / copy)
    again = build_corpus(config(text), tmp_path / "cache")
    assert again.files == corpus.files, "the copy in train is left out, the original stays held out"


def test_what_cannot_be_read_is_passed_over(text: Path, tmp_path: Path, corpus: Corpus) -> None:
    (text / "empty.py").touch()
    (text / "latin1.py").write_bytes(b"caf\xe9 = 1\n" * 9)
    (text / "notes.txt").write_text("no Python\n" * 9)
    (text / "gone.py").symlink_to(text / "nowhere.py")
    (text / "folder.py").mkdir()
    (text / "site-packages").mkdir()
    (text / "site-packages" / "installed.py").write_text("somebody's package\n" * 9)
    assert build_corpus(config(text), tmp_path / "cache").hash == corpus.hash
    with_notes = build_corpus(config(text, suffixes=[".py", ".txt"]), tmp_path / "cache")
    assert any("notes.txt" in names for names in with_notes.files.values())


def test_max_bytes_takes_whole_files_from_all_folders(text: Path) -> None:
    every, some = find_files(config(text)), find_files(config(text, max_bytes=20_000))
    assert 15_000 < sum(f.size for f in some) <= 20_000 < sum(f.size for f in every)
    assert {f.relative.split("/")[0] for f in some} == {"part0", "part1", "part2"}
    assert [f for f in every if f in some] == some, "a cap keeps the order"


def test_long_texts_are_cut_at_line_ends(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = text / "long.py"
    long.write_text("".join(f"line {i} of a file longer than a piece\n" for i in range(400)))
    (text / "one_line.py").write_text("x = 1; " * 700)
    only_long = [f for f in find_files(config(text)) if f.path == str(long)]
    pieces = list(corpora._pieces(only_long, set(), [], most=1000))
    assert "".join(text for text, _ in pieces) == long.read_text()
    assert all(len(text) <= 1000 and text.endswith("\n") for text, _ in pieces) and len(pieces) > 10
    assert [last for _, last in pieces] == [False] * (len(pieces) - 1) + [True]
    monkeypatch.setattr(corpora._pieces, "__defaults__", (1000,))
    test_every_file_is_there_in_order_with_its_end(build_corpus(config(text), tmp_path / "cache"), text)


def test_pythons_own_library(tmp_path: Path) -> None:
    corpus = build_corpus(DataConfig(vocab_size=512, max_bytes=300_000), tmp_path)
    assert 250_000 < sum(corpus.bytes.values()) <= 300_000
    library = {f.relative for f in find_files(DataConfig())}
    assert {"abc.py", "json/decoder.py"} <= library and not any("site-packages" in name for name in library)
    packages = {f.relative for f in find_files(DataConfig(source="python+packages"))}
    assert library < library | {"torch/nn/modules/linear.py"} < packages


# ---- batches


def counting(tmp_path: Path, tokens: int) -> Corpus:
    """A corpus whose token t is t, so that a window tells where it began."""
    line = np.arange(tokens, dtype=np.uint16)
    return Corpus(tmp_path, line, line[::-1], tokens, "", {}, {})


def test_a_batch_depends_on_seed_step_and_split_alone(tmp_path: Path) -> None:
    c = counting(tmp_path, 60_000)
    base = c.batch(3, 8, 16, seed=5)
    assert base.shape == (8, 17) and base.dtype == torch.int64
    assert torch.equal(base, base[:, :1] + torch.arange(17)), "windows of consecutive tokens"
    assert torch.equal(c.batch(3, 20, 16, seed=5)[:8], base), "a larger batch adds rows and changes none"
    others = [c.batch(4, 8, 16, 5), c.batch(3, 8, 16, 6), 59_999 - c.batch(3, 8, 16, 5, "heldout")]
    for i, a in enumerate([base, *others]):
        for b in [base, *others][:i]:
            assert not set(a[:, 0].tolist()) & set(b[:, 0].tolist()), "8 of 60,000 starts: no two alike by chance"


def test_the_rule_holds_on_every_machine(tmp_path: Path) -> None:
    """Known answers of Philox4x64-10: another numpy must not make a resumed run read other text."""
    c = counting(tmp_path, 60_000)
    assert c.batch(0, 5, 8, 0)[:, 0].tolist() == [6187, 43946, 12553, 42540, 35459]
    assert c.batch(1_000_000, 5, 8, 2**40)[:, 0].tolist() == [20402, 45047, 58694, 36222, 18615]
    assert (59_999 - c.batch(3, 5, 8, 7, "heldout")[:, 0]).tolist() == [56320, 46734, 58306, 30660, 16218]


def test_windows_reach_both_ends_and_no_further(tmp_path: Path) -> None:
    starts = counting(tmp_path, 20).batch(0, 2000, 16, seed=0)[:, 0]
    assert starts.unique().tolist() == [0, 1, 2, 3]
    assert starts.bincount().min() > 400  # 500 expected, standard deviation 19
    assert counting(tmp_path, 17).batch(0, 5, 16, seed=0)[:, 0].tolist() == [0] * 5
    with pytest.raises(LabError, match="train split has 16 tokens, fewer than one window of seq_len \\+ 1 = 17"):
        counting(tmp_path, 16).batch(0, 5, 16, seed=0)


def test_ranks_get_the_path_not_the_tokens(corpus: Corpus) -> None:
    data = pickle.dumps(corpus)
    assert len(data) < 1000
    other = pickle.loads(data)
    assert isinstance(other.train, np.memmap) and other.hash == corpus.hash
    assert torch.equal(other.batch(7, 3, 20, 1), corpus.batch(7, 3, 20, 1))
    assert corpus.describe()["tokens"] == {"train": len(corpus.train), "heldout": len(corpus.heldout)}


# ---- the cache


def test_built_once(corpus: Corpus, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "train_tokenizer", None)  # calling it again would fail
    assert build_corpus(config(text), tmp_path / "cache").path == corpus.path
    monkeypatch.setenv("LABKIT_CACHE", str(tmp_path / "cache"))
    assert build_corpus(config(text)).path == corpus.path
    monkeypatch.undo()
    assert build_corpus(config(text, vocab_size=300), tmp_path / "cache").vocab_size == 300
    assert build_corpus(config(text, heldout_fraction=0.5), tmp_path / "cache").hash != corpus.hash
    assert len(list((tmp_path / "cache" / "corpus").glob("*[0-9a-f]"))) == 3


@pytest.mark.parametrize("damage", ["truncated", "missing", "garbage"])
def test_a_damaged_cache_is_built_again(corpus: Corpus, text: Path, tmp_path: Path, damage: str) -> None:
    before = np.array(corpus.train)
    if damage == "truncated":
        os.truncate(corpus.path / "train.bin", 100)
    elif damage == "missing":
        (corpus.path / "heldout.bin").unlink()
    else:
        (corpus.path / "about.json").write_text("{")
    again = build_corpus(config(text), tmp_path / "cache")
    assert (again.path, again.hash) == (corpus.path, corpus.hash) and np.array_equal(again.train, before)


def leftovers(cache_dir: Path) -> list[str]:
    """What is in the cache apart from whole corpora and lock files."""
    return [p.name for p in (cache_dir / "corpus").glob("*") if "building" in p.name]


def test_an_interrupted_build_leaves_nothing(text: Path, tmp_path: Path) -> None:
    def progress(what: str, fraction: float) -> None:
        if what == "turning text into tokens":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_corpus(config(text), tmp_path / "cache", progress)
    assert not list((tmp_path / "cache" / "corpus").glob("*[!k]")), "a lock file is all that may stay"
    assert build_corpus(config(text), tmp_path / "cache").vocab_size == 400


def test_a_cache_that_cannot_be_made(text: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match=r"cannot write the cache .*file/sub/corpus \(Not a directory\): .*LABKIT_CACHE"):
        build_corpus(config(text), tmp_path / "file" / "sub")


@pytest.mark.parametrize("part", ["tokenizer.json", "train.bin"])
def test_a_full_disk(text: Path, tmp_path: Path, part: str) -> None:
    """Each part in its turn is one byte too large for what is left; those before it fit."""
    whole = build_corpus(config(text), tmp_path / "roomy").path
    size = {name: (whole / name).stat().st_size for name in ("tokenizer.json", "heldout.bin", "train.bin")}
    assert max(size["heldout.bin"], size["tokenizer.json"]) < size["train.bin"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size[part] - 1, before[1]))  # a write beyond it fails
    try:
        with pytest.raises(LabError, match=f"cannot write the cache {tmp_path / 'cache'}"):
            build_corpus(config(text), tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / "cache" / "corpus").glob("*[!k]"))
    assert build_corpus(config(text), tmp_path / "cache").vocab_size == 400


MANY = """
import os, sys, time
from pathlib import Path
from labkit.train.data import corpus as corpora
from labkit.train.data.sources import DataConfig
from labkit.train.data.corpus import build_corpus
text, cache, go, log, name = sys.argv[1:]
train = corpora.train_tokenizer

def logged(texts, vocab_size):
    with open(log, "a") as file:
        file.write(f"build {os.getpid()}\\n")
    if name == "victim":
        time.sleep(600)                      # killed here, in the middle of a build and holding the lock
    return train(texts, vocab_size)

def progress(what, fraction):
    if what.startswith("waiting"):
        with open(log, "a") as file:
            file.write(f"wait {os.getpid()}\\n")

corpora.train_tokenizer = logged
print("ready", flush=True)
while not Path(go).exists():
    time.sleep(0.005)
corpus = build_corpus(DataConfig(source=[text], vocab_size=400, heldout_fraction=0.2), cache, progress)
print(corpus.hash, flush=True)
"""


def start(text: Path, tmp_path: Path, name: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", MANY, str(text), *(str(tmp_path / part) for part in ("cache", f"go {name}", "log"))]
    return subprocess.Popen([*words, name], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_builder_killed_in_the_middle_blocks_nobody(text: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    victim = start(text, tmp_path, "victim")
    others = [start(text, tmp_path, "others") for _ in range(2)]
    try:
        assert all(p.stdout.readline() == "ready\n" for p in (victim, *others))
        (tmp_path / "go victim").touch()
        until(lambda: log.exists() and "build" in log.read_text())
        (tmp_path / "go others").touch()
        until(lambda: log.read_text().count("wait") == 2)  # both stand before the lock
        assert len(leftovers(tmp_path / "cache")) == 1
        os.kill(victim.pid, signal.SIGKILL)
        outs = [p.communicate(timeout=120) for p in others]
    finally:
        for p in (victim, *others):
            p.kill()
            p.wait()
    assert [p.returncode for p in others] == [0] * 2, outs
    assert len({out for out, _ in outs}) == 1
    assert log.read_text().count("build") == 2, "the victim's, and one by those who waited"
    assert not leftovers(tmp_path / "cache"), "the next holder of the lock sweeps up"


# ---- sources that are no use


@pytest.mark.parametrize(
    "files, changes, complaint",
    [
        (
            {"a.py": "x\n", "b.txt": "y\n"},
            {},
            r"found 1 usable file\(s\) \(.py\) in .*text2'.; a corpus needs at least",
        ),
        ({"a.py": "x" * 99, "b.py": "y" * 99}, {"max_bytes": 120}, "found 1 usable .* within max_bytes = 120"),
        ({"a.py": "x\n", "b.py": "x\n"}, {}, "no usable text for the train split"),
        ({"a.py": "", "b.py": ""}, {}, "no usable text for the heldout split"),
    ],
)
def test_no_usable_text(tmp_path: Path, files: dict[str, str], changes: dict, complaint: str) -> None:
    root = tmp_path / "text2"
    root.mkdir()
    for name, content in files.items():
        (root / name).write_text(content)
    with pytest.raises(LabError, match=complaint):
        build_corpus(config(root, **changes), tmp_path / "cache")


def test_a_file_named_directly_counts_whatever_its_suffix(text: Path, tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("a line of a poem\n" * 30)
    source = [str(text), str(tmp_path / "poem.txt"), str(text / "part0")]
    corpus = build_corpus(DataConfig(source=source, vocab_size=400), tmp_path / "cache")
    every = corpus.files["train"] + corpus.files["heldout"]
    assert "poem.txt" in every and len(every) == 61, "a folder named twice is read once"
