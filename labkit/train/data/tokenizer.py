"""Byte-pair encoding: from text to tokens.

Start from the 256 bytes, so that any text can be written; then again and again join the pair of neighbours that occurs
most often in a sample into a new token, until the vocabulary is full (arXiv:1508.07909; on bytes: GPT-2). Token 0 ends
every file. The work is done by the `tokenizers` library, on all cores.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END = "<|end|>"  # token 0, after every file
SAMPLE_BYTES_PER_ENTRY = 512  # measured: more text than this per vocabulary entry costs time, saves no tokens
LEAST_SAMPLE = 2 << 20


def sample_bytes(vocab_size: int) -> int:
    """How much text to learn a vocabulary from: 2 MiB, more for vocabularies of more than 4096."""
    return max(LEAST_SAMPLE, SAMPLE_BYTES_PER_ENTRY * vocab_size)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most vocab_size entries (fewer if the texts run out of pairs). Deterministic."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer
