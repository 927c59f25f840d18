"""Metrics against a second, plain computation, and against the paper's own arithmetic."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fewgraft.metrics import (
    METRICS,
    Interval,
    Scores,
    class_accuracy,
    confusion,
    interval,
    join_scores,
    paired,
    score,
    summarise,
)

pytestmark = pytest.mark.numerical


def plain_scores(logits: Tensor, labels: Tensor, n_base: int) -> dict[str, list[float]]:
    """Count right answers one query at a time."""

    def share(hits: list[bool]) -> float:
        return sum(hits) / len(hits) if hits else math.nan

    found: dict[str, list[float]] = {name: [] for name in ("acc", "b_all", "n_all", "b_b", "n_n")}
    for rows, answers in zip(logits.tolist(), labels.tolist(), strict=True):
        hits: dict[str, list[bool]] = {name: [] for name in found}
        for row, answer in zip(rows, answers, strict=True):
            right = row.index(max(row)) == answer
            hits["acc"].append(right)
            if answer < n_base:
                own = row[:n_base]
                hits["b_all"].append(right)
                hits["b_b"].append(own.index(max(own)) == answer)
            else:
                own = row[n_base:]
                hits["n_all"].append(right)
                hits["n_n"].append(own.index(max(own)) + n_base == answer)
        for name, values in hits.items():
            found[name].append(share(values))
    return found


def made_case(
    seed: int, n_base: int, ways: int, queries: int, episodes: int
) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, n_base + ways, (episodes, queries), generator=rng)
    logits = torch.randn(episodes, queries, n_base + ways, generator=rng)
    logits.scatter_add_(2, labels[..., None], torch.ones(episodes, queries, 1))
    return logits, labels


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_base=st.integers(0, 6),
    ways=st.integers(1, 5),
    queries=st.integers(1, 20),
    episodes=st.integers(1, 4),
)
def test_scores_agree_with_counting(
    seed: int, n_base: int, ways: int, queries: int, episodes: int
) -> None:
    logits, labels = made_case(seed, n_base, ways, queries, episodes)
    scores = score(logits, labels, n_base)
    for name, values in plain_scores(logits, labels, n_base).items():
        np.testing.assert_allclose(getattr(scores, name).numpy(), values, atol=1e-12)


def one(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


@pytest.mark.parametrize(
    ("b_all", "n_all", "b_b", "n_n", "acc", "delta"),
    [
        (65.91, 80.05, 73.36, 83.39, 72.98, -5.39),  # Meta-Inc-Baseline
        (70.65, 61.07, 71.28, 85.70, 65.86, -12.63),  # + Graph
        (64.13, 82.30, 73.10, 84.47, 73.22, -5.57),  # + FixMatch
        (60.32, 85.04, 73.36, 85.86, 72.68, -6.93),  # + PR
        (67.58, 84.90, 73.08, 87.82, 76.24, -4.21),  # proposed
    ],
)
def test_the_arithmetic_of_the_papers_table_3(
    b_all: float, n_all: float, b_b: float, n_n: float, acc: float, delta: float
) -> None:
    """75 base and 75 novel queries: Acc is the mean of b/all and n/all; Δ is as defined."""
    scores = Scores(one((b_all + n_all) / 2), one(b_all), one(n_all), one(b_b), one(n_n))
    assert scores.acc.item() == pytest.approx(acc, abs=0.0051)
    assert scores.delta.item() == pytest.approx(delta, abs=0.0051)
    assert scores.delta_b.item() == pytest.approx(b_all - b_b)
    assert scores.delta_n.item() == pytest.approx(n_all - n_n)


def test_joint_accuracy_of_equal_halves_is_their_mean() -> None:
    labels = torch.cat([torch.arange(75) % 8, 8 + torch.arange(75) % 5])[None]
    logits = torch.randn(1, 150, 13, generator=torch.Generator().manual_seed(0))
    scores = score(logits, labels, 8)
    assert scores.acc.item() == pytest.approx((scores.b_all + scores.n_all).item() / 2)


def test_harmonic_mean() -> None:
    scores = Scores(*(torch.tensor([0.5, 0.0, 1.0]) for _ in range(5)))
    assert scores.harmonic.tolist() == [0.5, 0.0, 1.0]
    scores = Scores(one(0.5), one(0.25), one(0.75), one(1), one(1))
    assert scores.harmonic.item() == pytest.approx(2 / (1 / 0.25 + 1 / 0.75))


def test_without_base_classes_only_novel_figures_exist() -> None:
    logits, labels = made_case(0, 0, 5, 75, 3)
    summary = summarise(score(logits, labels, 0))
    assert summary["acc"] == summary["n_n"] == summary["n_all"]
    assert all(math.isnan(summary[name].mean) for name in ("b_all", "b_b", "delta", "harmonic"))


def test_intervals_are_the_papers() -> None:
    values = torch.rand(600, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = interval(values)
    assert found.mean == pytest.approx(np.mean(values.numpy()))
    assert found.half == pytest.approx(1.96 * np.std(values.numpy(), ddof=1) / np.sqrt(600))
    assert math.isnan(interval(torch.ones(1)).half)
    assert str(Interval(0.6065, 0.0042)) == "60.65 ± 0.42"


def test_paired_differences_see_what_two_intervals_hide() -> None:
    rng = torch.Generator().manual_seed(0)
    b = torch.rand(600, generator=rng, dtype=torch.float64)
    a = b + 0.01 + 0.02 * torch.randn(600, generator=rng, dtype=torch.float64)
    assert abs(interval(a).mean - interval(b).mean) < interval(a).half, "looks like nothing"
    found = paired(a, b)
    assert found.difference.excludes_zero
    assert found.difference.mean == pytest.approx((a - b).mean().item())
    assert found.wins + found.ties + found.losses == 600
    assert found.wins > found.losses
    assert not paired(a, a).difference.excludes_zero
    with pytest.raises(ValueError, match="cannot be paired"):
        paired(a, b[:-1])


def test_joined_chunks_are_the_whole() -> None:
    logits, labels = made_case(1, 4, 3, 10, 9)
    whole = score(logits, labels, 4)
    chunks = join_scores(score(logits[i : i + 4], labels[i : i + 4], 4) for i in (0, 4, 8))
    for name in METRICS:
        torch.testing.assert_close(getattr(whole, name), getattr(chunks, name), equal_nan=True)


def test_confusion_says_where_queries_go() -> None:
    labels = torch.tensor([[0, 0, 1, 2, 2, 3]])
    answers = torch.tensor([[0, 1, 2, 2, 3, 0]])
    logits = torch.nn.functional.one_hot(answers, 4).float()
    found = confusion(logits, labels, 2)
    third = 1 / 3
    assert (found.base_right, found.base_to_other_base, found.base_to_novel) == (third,) * 3
    assert (found.novel_right, found.novel_to_other_novel, found.novel_to_base) == (third,) * 3


def test_confusion_agrees_with_the_scores() -> None:
    logits, labels = made_case(2, 6, 4, 30, 5)
    found = confusion(logits, labels, 6)
    right = logits.argmax(-1) == labels
    assert found.base_right == pytest.approx(right[labels < 6].double().mean().item())
    assert found.novel_right == pytest.approx(right[labels >= 6].double().mean().item())
    base = found.base_right + found.base_to_other_base + found.base_to_novel
    novel = found.novel_right + found.novel_to_other_novel + found.novel_to_base
    assert base == pytest.approx(1)
    assert novel == pytest.approx(1)


def test_accuracy_of_each_class_agrees_with_counting() -> None:
    logits, labels = made_case(3, 4, 3, 25, 6)
    classes = torch.stack([torch.randperm(10)[:3] + 4 for _ in range(6)])
    counted: dict[int, list[bool]] = {}
    for e in range(6):
        for q in range(25):
            label = int(labels[e, q])
            name = label if label < 4 else int(classes[e, label - 4])
            counted.setdefault(name, []).append(bool(logits[e, q].argmax() == label))
    expected = {name: (sum(hits), len(hits)) for name, hits in counted.items()}
    assert class_accuracy(logits, labels, classes, 4) == expected


def test_what_cannot_be_scored_is_refused() -> None:
    logits, labels = made_case(4, 4, 3, 5, 2)
    with pytest.raises(ValueError, match="do not fit"):
        score(logits[:, :-1], labels, 4)
    with pytest.raises(ValueError, match="no novel class"):
        score(logits, labels, 7)
    logits[0, 0, 0] = math.nan
    with pytest.raises(ValueError, match="finite"):
        score(logits, labels, 4)


def test_of_equal_logits_the_first_class_counts() -> None:
    logits = torch.tensor([[[1.0, 2.0, 2.0, 0.0], [3.0, 1.0, 3.0, 3.0], [0.0, 1.0, 2.0, 2.0]]])
    found = score(logits, torch.tensor([[2, 0, 2]]), n_base=2)
    naive = (logits.argmax(-1) == torch.tensor([[2, 0, 2]])).double().mean()
    assert found.acc.item() == naive.item() == 2 / 3
    assert (found.b_all.item(), found.n_all.item(), found.n_n.item()) == (1.0, 0.5, 1.0)
