"""BD-CSPN against a loop over episodes, classes and pictures."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.bd_cspn import BiasDiminishing, ShiftedFeatures
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.prototypes import cosine_logits, prototypes

pytestmark = pytest.mark.numerical

EPISODES, WAYS, WIDTH = 3, 4, 6


def made(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def task(unlabelled: int = 11, labels: tuple[int, ...] = (0, 0, 0, 1, 2, 2, 3)) -> Task:
    """Classes of different numbers of supports."""
    return Task(
        ways=WAYS,
        support=normalize(made(0, EPISODES, len(labels), WIDTH), dim=-1),
        labels=torch.tensor([labels] * EPISODES),
        unlabelled=normalize(made(1, EPISODES, unlabelled, WIDTH) + 0.5, dim=-1),
        base_unlabelled=torch.empty(EPISODES, unlabelled, 0, dtype=torch.float64),
        weights=torch.empty(0, WIDTH, dtype=torch.float64),
        gamma=10.0,
        numbers=torch.arange(EPISODES),
    )


def cosine(a: Tensor, b: Tensor) -> float:
    return cosine_similarity(a, b, dim=0).item()


def plain_rectification(given: Task, e: int, sharpness: float, shift: bool) -> Tensor:
    """The prototypes of one episode, a picture at a time [N, d]."""
    support = [x / x.norm() for x in given.support[e]]
    unlabelled = [x / x.norm() for x in given.unlabelled[e]]
    if shift:
        difference = sum(support) / len(support) - sum(unlabelled) / len(unlabelled)
        unlabelled = [x + difference for x in unlabelled]
    owned: list[list[Tensor]] = [[] for _ in range(given.ways)]
    for x, label in zip(support, given.labels[e].tolist(), strict=True):
        owned[label].append(x)
    first = [torch.stack(pictures).mean(0) for pictures in owned]
    for x in unlabelled:
        likeness = [cosine(x, prototype) for prototype in first]
        owned[likeness.index(max(likeness))].append(x)
    found = []
    for pictures, prototype in zip(owned, first, strict=True):
        weights = [math.exp(sharpness * cosine(x, prototype)) for x in pictures]
        total = sum(w * x for w, x in zip(weights, pictures, strict=True))
        found.append(torch.as_tensor(total) / sum(weights))
    return torch.stack(found)


def rectified(given: Task, config: BiasDiminishing) -> Tensor:
    """The prototypes' directions [E, N, d]."""
    return normalize(config.fit(given).novel, dim=-1)


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 10.0])
def test_it_agrees_with_a_plain_loop(sharpness: float, shift: bool) -> None:
    given = task()
    found = rectified(given, BiasDiminishing(sharpness=sharpness, shift=shift))
    for e in range(EPISODES):
        expected = plain_rectification(given, e, sharpness, shift)
        torch.testing.assert_close(found[e], normalize(expected, dim=-1))


def test_its_options_matter() -> None:
    given = task()
    plain = rectified(given, BiasDiminishing())
    assert not torch.allclose(rectified(given, BiasDiminishing(shift=False)), plain)
    assert not torch.allclose(rectified(given, BiasDiminishing(sharpness=10.0)), plain)


def test_only_the_surest_pictures_of_each_class_take_part() -> None:
    given = task()
    found = rectified(given, BiasDiminishing(surest=2, shift=False))
    novel = prototypes(given.support, given.labels, WAYS)
    for e in range(EPISODES):
        cosines = given.unlabelled[e] @ novel[e].T
        kept = []
        for way in range(WAYS):
            own = (cosines.argmax(1) == way).nonzero()[:, 0]
            kept += own[cosines[own, way].argsort(descending=True)[:2]].tolist()
        less = dataclasses.replace(
            given,
            support=given.support[e : e + 1],
            labels=given.labels[e : e + 1],
            unlabelled=given.unlabelled[e : e + 1, kept],
        )
        expected = rectified(less, BiasDiminishing(shift=False))[0]
        torch.testing.assert_close(found[e], expected)
    assert not torch.allclose(found, rectified(given, BiasDiminishing(shift=False)))


def test_an_empty_unlabelled_set_leaves_the_prototypes() -> None:
    given = task(unlabelled=0)
    expected = prototypes(given.support, given.labels, WAYS)
    torch.testing.assert_close(BiasDiminishing().fit(given).novel, expected)


def test_an_unlabelled_set_with_the_mean_of_the_support_is_not_moved() -> None:
    given = task(unlabelled=7)
    same = dataclasses.replace(given, unlabelled=given.support)
    moved, still = (rectified(same, BiasDiminishing(shift=shift)) for shift in (True, False))
    torch.testing.assert_close(moved, still)


def test_a_moved_unlabelled_set_is_what_it_would_be_if_written_out() -> None:
    given = task(unlabelled=11)
    directions = given.unlabelled
    mean = given.support.mean(1, keepdim=True)
    unlabelled = ShiftedFeatures(directions).to(mean)
    expected = directions + (mean - directions.mean(1, keepdim=True))
    weights = made(5, EPISODES, WAYS, 11)
    torch.testing.assert_close(unlabelled.weighted_sums(weights), weights @ expected)
    novel = normalize(made(6, EPISODES, WAYS, WIDTH), dim=-1)
    cosines = cosine_logits(expected, novel).transpose(1, 2)
    torch.testing.assert_close(unlabelled.cosines(novel), cosines)
    torch.testing.assert_close(expected.mean(1, keepdim=True), mean)


def test_an_unlabelled_set_helps_where_one_picture_is_far_from_its_class() -> None:
    centres = normalize(made(7, WAYS, 32), dim=-1)
    pictures = normalize(
        centres[:, None] + 0.2 * made(8, 20, WAYS, 40, 32), dim=-1
    )  # [E, N, 40, d]
    support, unlabelled, query = pictures[:, :, 0], pictures[:, :, 1:25], pictures[:, :, 25:]
    labels, answers = torch.arange(WAYS), torch.arange(WAYS).repeat_interleave(15)
    given = dataclasses.replace(
        task(),
        support=support,
        labels=labels.expand(20, -1),
        unlabelled=unlabelled.flatten(1, 2),
    )
    queries = Queries(query.flatten(1, 2), torch.empty(20, 60, 0, dtype=torch.float64))
    with_unlabelled, without = (
        (method.fit(given).logits(queries).argmax(-1) == answers).double().mean()
        for method in (BiasDiminishing(), NearestPrototype())
    )
    assert with_unlabelled > without + 0.02
