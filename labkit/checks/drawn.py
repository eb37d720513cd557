"""A case's random data, all of them from its seed: `Draw`, and `tensors` for a vector on each rank."""

import zlib
from collections.abc import Sequence

import numpy as np
import torch


class Draw:
    """One case's random numbers: the same for the same seed and the same words. All bits of the seed count."""

    def __init__(self, seed: int, *words: object) -> None:
        self.rng = np.random.default_rng([seed % 2**63, zlib.crc32(repr(words).encode())])

    def size(self, least: int, most: int, *, times: int = 1) -> int:
        """A multiple of `times` from `least` times to `most` times it."""
        return times * int(self.rng.integers(least, most + 1))

    def whole(self, *shape: int, most: int = 9, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Whole numbers from -most to most without 0: sums of products are exact in float32, in any order, below 2**24."""
        size, sign = self.rng.integers(1, most + 1, shape), self.rng.integers(0, 2, shape) * 2 - 1
        return torch.from_numpy(np.asarray(size * sign)).to(dtype)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Normal numbers. torch's own generator takes 32 bits of a seed: a rank found them out from its weights."""
        return torch.from_numpy(np.asarray(scale * self.rng.standard_normal(shape))).to(dtype)

    def ids(self, below: int, *shape: int) -> torch.Tensor:
        """Indices from 0 to below - 1, int64."""
        return torch.from_numpy(np.asarray(self.rng.integers(0, below, shape)))

    def order(self, values: Sequence[int]) -> list[int]:
        """The values in a random order."""
        return [int(value) for value in self.rng.permutation(np.asarray(values))]


def tensors(seed: int, N: int, L: int, dtype: torch.dtype = torch.float32, whole: bool = True) -> list[torch.Tensor]:
    """N random vectors of L numbers, for N ranks: standard normal, or whole from -999 to 999 without 0 (sums over up to
    8000 ranks are exact in fp32)."""
    # All bits of the seed count: torch's generator takes 32, few enough to try.
    generator = np.random.default_rng(seed % 2**63)
    if not whole:
        return list(torch.from_numpy(generator.standard_normal((N, L))).to(dtype))
    size = generator.integers(1, 1000, (N, L))
    sign = generator.integers(0, 2, (N, L)) * 2 - 1
    return list(torch.from_numpy(size * sign).to(dtype))
