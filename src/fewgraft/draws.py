"""Random draws that are the same on every machine, today and in ten years.

A draw without replacement is "the pictures with the k smallest random keys". The keys are raw words
of the Philox counter-based generator, whose stream NumPy guarantees never to change (unlike
the methods of its `Generator`, and unlike PyTorch's), and a sort of distinct integers has one
outcome only. A stream is named by two numbers (seed, stream), so that episode 412 can be
drawn without drawing the 411 before it, by any process.
"""

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Keys = NDArray[np.uint64]


class KeyStream:
    """An endless stream of random 64-bit keys, named by (seed, stream)."""

    def __init__(self, seed: int, stream: int) -> None:
        self._bits = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64))

    def keys(self, count: int) -> Keys:
        """The next `count` keys."""
        words: Keys = self._bits.random_raw(count)
        return words

    def choose(self, population: int, count: int) -> Indices:
        """`count` different numbers below `population`, in random order.

        The first j of a draw of k are the draw of j: a smaller draw is a prefix of a larger one.
        """
        return smallest(self.keys(population), count)

    def permutation(self, count: int) -> Indices:
        """The numbers below `count` in random order."""
        return self.choose(count, count)


def smallest(keys: Keys, count: int) -> Indices:
    """Where the `count` smallest keys are, smallest first."""
    if count == 0:
        return np.empty(0, dtype=np.int64)
    if count < len(keys):
        candidates = np.argpartition(keys, count - 1)[:count]
        return candidates[np.argsort(keys[candidates])].astype(np.int64)
    return np.argsort(keys).astype(np.int64)
