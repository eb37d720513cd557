"""Writing a corpus folder: text in, vocabulary and token arrays out.

tokenizer.json   the vocabulary, learnt from a sample of the train files
train.bin        one array of tokens (uint16, or uint32 for more than 65536 entries), no header
heldout.bin      the same for the held-out files
about.json       what they are, their sizes, and the hash of their contents; written last
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labkit.errors import LabError
from labkit.train.config import DataConfig
from labkit.train.data.sources import SourceFile, split
from labkit.train.data.tokenizer import END, sample_bytes, train_tokenizer

LAYOUT = 1  # of this folder; a change makes old caches unused
SPLITS = ("train", "heldout")
LOT = 1 << 21  # characters handed to the tokenizer at once: all cores busy, memory small
Progress = Callable[[str, float], None]  # progress(what is being done, fraction done in [0, 1])


class Piece(NamedTuple):
    """A stretch of one file's text; `last` if the file ends with it."""

    text: str
    last: bool


def write_corpus(folder: Path, config: DataConfig, files: list[SourceFile], report: Progress) -> None:
    """Fill an empty folder. LabError if a side has no usable text; OSError if the folder cannot be written."""
    sides = dict(zip(SPLITS, split(files, config.heldout_fraction), strict=True))
    report("learning the vocabulary", 0.05)
    tokenizer = train_tokenizer(_sample(sides["train"], sample_bytes(config.vocab_size)), config.vocab_size)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    entries, end = tokenizer.get_vocab_size(), tokenizer.token_to_id(END)
    dtype = np.dtype(np.uint16 if entries <= 1 << 16 else np.uint32)

    total, seen = sum(f.size for f in files), set()
    kept: dict[str, list[str]] = {side: [] for side in SPLITS}
    size = dict.fromkeys(SPLITS, 0)
    for side in ("heldout", "train"):  # held-out first: of two equal files on both sides, train loses its copy
        with (folder / f"{side}.bin").open("wb") as out:
            for lot in _lots(_pieces(sides[side], seen, kept[side])):
                report("turning text into tokens", 0.3 + 0.7 * min(1.0, sum(size.values()) / total))
                for piece, encoding in zip(lot, tokenizer.encode_batch_fast([p.text for p in lot]), strict=True):
                    out.write(np.array([*encoding.ids, end] if piece.last else encoding.ids, dtype).tobytes())
                    size[side] += len(piece.text.encode())
        if not kept[side]:
            raise LabError(
                f"no usable text for the {side} split: the files found are empty, copies of one another, or "
                "not UTF-8; name other folders in [data] source"
            )
    _write_about(folder, {"vocab_size": entries, "dtype": dtype.name, "files": kept, "bytes": size})


def is_whole(folder: Path) -> bool:
    """Whether a corpus folder is there with every file at the size its about.json gives."""
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in about["sizes"].items())
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return False


def _write_about(folder: Path, about: dict[str, Any]) -> None:
    names = ["tokenizer.json", "heldout.bin", "train.bin"]
    content = hashlib.sha256()
    for name in names:
        with (folder / name).open("rb") as file:
            for part in iter(lambda: file.read(1 << 22), b""):
                content.update(part)
    about |= {"layout": LAYOUT, "hash": content.hexdigest(), "sizes": {n: (folder / n).stat().st_size for n in names}}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _sample(files: list[SourceFile], most: int) -> Iterator[str]:
    """Texts from the front of the corpus order, which the path hash has shuffled, `most` characters in all."""
    for file in files:
        if most <= 0:
            return
        if text := file.read():
            yield text[:most]
            most -= len(text)


def _pieces(files: list[SourceFile], seen: set[bytes], kept: list[str], most: int = LOT // 2) -> Iterator[Piece]:
    """The texts of the files in order, long ones cut at line ends; notes in `kept` which files were usable.

    A text met before is left out: packages carry copies of one another, and a copy of a held-out file in train would
    make the held-out loss a test of memory.
    """
    for file in files:
        text = file.read()
        if not text or (digest := hashlib.blake2b(text.encode(), digest_size=16).digest()) in seen:
            continue
        seen.add(digest)
        kept.append(file.relative)
        begin = 0
        while len(text) - begin > most:
            cut = text.rfind("\n", begin, begin + most) + 1 or begin + most
            yield Piece(text[begin:cut], last=False)
            begin = cut
        yield Piece(text[begin:], last=True)


def _lots(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces in lots of about LOT characters."""
    lot, size = [], 0
    for piece in pieces:
        lot.append(piece)
        size += len(piece.text)
        if size >= LOT:
            yield lot
            lot, size = [], 0
    if lot:
        yield lot
