"""The corpus: real text as one long line of tokens, and the rule that says which tokens a training step sees.

Built once for a machine and a config: files are found and split, a vocabulary of byte pairs (arXiv:1508.07909, by the
`tokenizers` library) is learned, and each side is written as a memory-mapped array, token 0 after each file.

    tokenizer.json             the vocabulary
    train.bin  heldout.bin     one array of tokens each (uint16, or uint32 for more than 65536 entries), no header
    about.json                 what they are, their sizes, and the hash of their contents; written last

A batch is a function of (seed, step, split) alone, the same on 1 rank and 8. Row b of step s is the window of T + 1
tokens that starts at philox(key = (seed, split), counter = s)[b] mod (tokens - T) (Salmon et al. 2011).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.errors import LabError
from labkit.train.data.cache import built_once, cache_root
from labkit.train.data.sources import DataConfig, SourceFile, find_files, split

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

LAYOUT = 2  # of this folder; a change makes old caches unused
SPLITS = ("train", "heldout")
END = "<|end|>"  # token 0, after every file
SAMPLE_BYTES_PER_ENTRY = 512  # measured: more text than this per vocabulary entry costs time, saves no tokens
LEAST_SAMPLE = 2 << 20  # bytes
LOT = 256  # pieces handed to the tokenizer at once
# The most of one file in a piece: a core takes a piece at a time, and a long one leaves the others idle.
PIECE = 1 << 16
Piece = tuple[str, bool]  # a stretch of one file's text; whether the file ends with it
Progress = Callable[[str, float], None]  # progress(what is being done, fraction done in [0, 1])


@dataclass(frozen=True)
class Corpus:
    """Tokens on disk. It pickles as its path, so handing it to other processes copies no tokens."""

    path: Path
    train: np.memmap = field(repr=False)  # [tokens], uint16 or uint32
    heldout: np.memmap = field(repr=False)
    vocab_size: int  # entries the vocabulary really has; every token is below it
    hash: str  # sha256 over vocabulary and tokens, the same wherever the same text is
    files: dict[str, list[str]] = field(repr=False)  # relative paths of each split in corpus order
    bytes: dict[str, int]  # of text, per split

    def batch(self, step: int, batch_size: int, seq_len: int, seed: int, split: str = "train") -> torch.Tensor:
        """The whole batch of a step, the same on every rank: tokens [B, T + 1], int64, on the CPU. LabError: too short."""
        import torch  # here, so that a corpus can be prepared without waiting for torch

        tokens = getattr(self, split)
        starts = len(tokens) - seq_len
        if starts < 1:
            window = f"fewer than one window of seq_len + 1 = {seq_len + 1}: give [data] more text or lower seq_len"
            raise LabError(f"the {split} split has {len(tokens)} tokens, {window}")
        # The step is the counter's high word: each step owns 2^192 counters and can never run into the next one's.
        philox = np.random.Philox(key=[seed, SPLITS.index(split)], counter=[0, 0, 0, step])
        begin_B = philox.random_raw(batch_size) % np.uint64(starts)
        return torch.from_numpy(np.stack([tokens[b : b + seq_len + 1] for b in begin_B.tolist()]).astype(np.int64))

    def describe(self) -> dict[str, Any]:
        """Return what a run record keeps: enough to say later whether two runs read the same tokens."""
        return {
            "hash": self.hash,
            "vocab_size": self.vocab_size,
            "bytes": self.bytes,
            "tokens": {s: len(getattr(self, s)) for s in SPLITS},
            "files": {s: len(self.files[s]) for s in SPLITS},
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return open_corpus, (self.path,)


def build_corpus(config: DataConfig, cache_dir: str | Path | None = None, progress: Progress | None = None) -> Corpus:
    """Open a config's corpus, built first if the cache lacks it; every rank may call. LabError: no text, no cache."""
    report = progress or (lambda what, fraction: None)
    report("finding the text", 0.0)
    files = find_files(config)
    text = [[f.path, f.relative, f.size, f.modified] for f in files]
    parts = [LAYOUT, config.vocab_size, config.heldout_fraction, text]
    key = hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogateescape")).hexdigest()[:20]
    folder = Path(cache_dir or cache_root()) / "corpus" / key
    write = partial(write_corpus, config=config, files=files, report=report)
    built_once(folder, write, is_whole, partial(report, "waiting for another process that prepares the corpus", 0.0))
    report("corpus ready", 1.0)
    return open_corpus(folder)


def open_corpus(path: str | Path) -> Corpus:
    """Open a corpus folder that `build_corpus` made."""
    path = Path(path)
    about = json.loads((path / "about.json").read_text(encoding="utf-8"))
    train, heldout = (np.memmap(path / f"{s}.bin", dtype=about["dtype"], mode="r") for s in SPLITS)
    return Corpus(path, train, heldout, about["vocab_size"], about["hash"], about["files"], about["bytes"])


def write_corpus(folder: Path, config: DataConfig, files: list[SourceFile], report: Progress) -> None:
    """Fill an empty folder. LabError if a side has no usable text; OSError if the folder cannot be written."""
    sides = dict(zip(SPLITS, split(files, config.heldout_fraction), strict=True))
    report("learning the vocabulary", 0.05)
    most = max(LEAST_SAMPLE, SAMPLE_BYTES_PER_ENTRY * config.vocab_size)
    tokenizer = train_tokenizer(_sample(sides["train"], most), config.vocab_size)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    entries, end = tokenizer.get_vocab_size(), tokenizer.token_to_id(END)
    dtype = np.dtype(np.uint16 if entries <= 1 << 16 else np.uint32)

    total = sum(f.size for f in files)
    seen: set[bytes] = set()
    kept: dict[str, list[str]] = {side: [] for side in SPLITS}
    size = dict.fromkeys(SPLITS, 0)
    for side in ("heldout", "train"):  # held-out first: of two equal files on both sides, train loses its copy
        with (folder / f"{side}.bin").open("wb") as out:
            pieces = _pieces(sides[side], seen, kept[side])
            while lot := list(islice(pieces, LOT)):
                encodings = tokenizer.encode_batch_fast([text for text, _ in lot])
                report("turning text into tokens", 0.3 + 0.7 * min(1.0, sum(size.values()) / total))
                for (text, last), encoding in zip(lot, encodings, strict=True):
                    out.write(np.array([*encoding.ids, end] if last else encoding.ids, dtype).tobytes())
                    size[side] += len(text.encode())
        if not kept[side]:
            why = "the files found are empty, copies of one another, or not UTF-8"
            raise LabError(f"no usable text for the {side} split: {why}; name other folders in [data] source")
    names, content = ["tokenizer.json", "heldout.bin", "train.bin"], hashlib.sha256()
    for name in names:
        with (folder / name).open("rb") as file:
            hashlib.file_digest(file, lambda: content)  # goes on with the same hash
    about = {"vocab_size": entries, "dtype": dtype.name, "files": kept, "bytes": size, "layout": LAYOUT}
    about |= {"hash": content.hexdigest(), "sizes": {n: (folder / n).stat().st_size for n in names}}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of at most vocab_size entries (fewer if the texts run out of pairs). Deterministic."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def is_whole(folder: Path) -> bool:
    """Say whether a corpus folder is there with every file at the size its about.json gives."""
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in about["sizes"].items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _sample(files: list[SourceFile], most: int) -> Iterator[str]:
    """Yield texts from the front of the corpus order, which the path hash has shuffled, `most` characters in all."""
    for file in files:
        if most <= 0:
            return
        if text := file.read():
            yield text[:most]
            most -= len(text)


def _pieces(files: list[SourceFile], seen: set[bytes], kept: list[str], most: int = PIECE) -> Iterator[Piece]:
    """Yield (text, whether its file ends with it) in order, long texts cut at line ends; note usable files in `kept`."""
    # A text met before is left out: packages carry copies of one another, and a copy of a held-out file in train would
    # make the held-out loss a test of memory.
    for file in files:
        text = file.read()
        if not text or (digest := hashlib.blake2b(text.encode(), digest_size=16).digest()) in seen:
            continue
        seen.add(digest)
        kept.append(file.relative)
        begin = 0
        while len(text) - begin > most:
            cut = text.rfind("\n", begin, begin + most) + 1 or begin + most
            yield text[begin:cut], False
            begin = cut
        yield text[begin:], True


# ---- how a batch is shared: over ranks, and over micro-batches that are computed one after another


def rows_per_micro_batch(batch_size: int, accumulation: int, shares: int) -> int:
    """Return the sequences of a micro-batch on one rank; LabError if the batch does not divide evenly."""
    parts = shares * accumulation
    if batch_size % parts:
        fitting = [str(size) for size in range(batch_size - batch_size % parts, batch_size + parts, parts) if size]
        raise LabError(
            f"batch_size {batch_size} does not divide by {shares} ranks x {accumulation} micro-batches = {parts}: use "
            f"batch_size {' or '.join(fitting)}, or change accumulation"
        )
    return batch_size // parts


def micro_batches(
    tokens: torch.Tensor, share: tuple[int, int], micro_batch_size: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Part `share` = (index, count) of a global batch [B, T + 1], in micro-batches (inputs [b, T], targets [b, T])."""
    each = tokens.shape[0] // share[1]
    mine = tokens[share[0] * each : (share[0] + 1) * each]
    if device.type == "cuda":
        mine = mine.pin_memory()  # pageable memory would make the CPU wait for the GPU here
    mine = mine.to(device, non_blocking=True)
    for part in mine.split(micro_batch_size):
        yield part[:, :-1], part[:, 1:]
