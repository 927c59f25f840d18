"""Draws are the same on every machine, and fair."""

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewgraft.draws import KeyStream, smallest

pytestmark = pytest.mark.numerical


@given(seed=st.integers(0, 2**64 - 1), stream=st.integers(0, 2**32), data=st.data())
def test_a_draw_is_without_replacement_and_its_prefix_is_the_smaller_draw(
    seed: int, stream: int, data: st.DataObject
) -> None:
    population = data.draw(st.integers(1, 200))
    count = data.draw(st.integers(0, population))
    drawn = KeyStream(seed, stream).choose(population, count)
    assert len(set(drawn.tolist())) == count
    assert all(0 <= number < population for number in drawn)
    whole = KeyStream(seed, stream).permutation(population)
    assert drawn.tolist() == whole[:count].tolist()


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, unique=True), st.data())
def test_smallest_agrees_with_a_plain_sort(keys: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(keys)))
    found = smallest(np.array(keys, np.uint64), count)
    assert [keys[i] for i in found] == sorted(keys)[:count]


def test_the_stream_never_changes() -> None:
    """Golden: other bytes here mean that every published episode has changed."""
    words = KeyStream(7, 11).keys(1000).astype("<u8").tobytes()
    assert hashlib.sha256(words).hexdigest()[:16] == "e440eb684340a4a9"


def test_draws_are_uniform() -> None:
    """Each of 20 numbers is drawn by a quarter of 4000 draws of 5: chi-square with 19 degrees."""
    counts = np.zeros(20)
    first = np.zeros(20)
    for stream in range(4000):
        drawn = KeyStream(3, stream).choose(20, 5)
        counts[drawn] += 1
        first[drawn[0]] += 1
    for observed, expected in ((counts, 1000), (first, 200)):
        assert ((observed - expected) ** 2 / expected).sum() < 43.8  # p = 0.001


def test_neighbouring_streams_are_independent() -> None:
    firsts = [KeyStream(0, stream).permutation(50) for stream in range(400)]
    agreements = sum(int((a == b).sum()) for a, b in pairwise(firsts))
    assert 300 < agreements < 500  # one expected for each of 399 pairs
