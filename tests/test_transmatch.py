"""TransMatch (head): loops over pictures, and limits in which it is plain fine-tuning."""

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.methods.base import Queries, Task, TaskPictures
from fewgraft.methods.transductive.transmatch import (
    Draws,
    TransMatch,
    Views,
    scored,
    sharpened,
)
from fewgraft.prototypes import directions, prototypes

pytestmark = pytest.mark.numerical
EPISODES, WAYS, WIDTH, PICTURES = 2, 3, 8, 60
LABELS = torch.tensor([0, 1, 1, 2, 2, 2])


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


VIEWS = directions(drawn(0, PICTURES, WIDTH) + 0.3 * drawn(1, 3, PICTURES, WIDTH))
NETWORK: Any = SimpleNamespace(
    initial_features=lambda pictures, view: VIEWS[view][pictures], weak_view=lambda number: number
)


def problem() -> tuple[Task, Queries]:
    order = torch.stack(
        [torch.randperm(PICTURES, generator=torch.Generator().manual_seed(e)) for e in range(2)]
    )
    support, pile, query = order[:, :6], order[:, 6:20], order[:, 20:30]
    plain = VIEWS.mean(0)
    task = Task(
        ways=WAYS,
        support=directions(plain[support]),
        labels=LABELS.expand(EPISODES, -1),
        unlabelled=directions(plain[pile]),
        base_unlabelled=torch.empty(EPISODES, 14, 0),
        weights=torch.empty(0, WIDTH),
        gamma=10.0,
        numbers=torch.arange(5, 5 + EPISODES),
        pictures=TaskPictures(cast(Any, NETWORK), support, pile),
    )
    return task, Queries(directions(plain[query]), torch.empty(EPISODES, 10, 0))


def test_sharpening() -> None:
    shares = drawn(0, 5, 4).softmax(-1)
    torch.testing.assert_close(sharpened(shares, 1.0), shares)
    torch.testing.assert_close(
        sharpened(shares, 0.5), shares.square() / shares.square().sum(-1, keepdim=True)
    )


def test_draws_are_the_episodes_own() -> None:
    first, again, other = (Draws.of(number, 300, 4, (6, 14)) for number in (3, 3, 4))
    assert torch.equal(first.partners, again.partners)
    assert not torch.equal(first.partners, other.partners)
    assert torch.equal(first.partners.sort(1).values, torch.arange(12).expand(300, -1))
    assert first.support.max() == 5
    assert first.unlabelled.max() == 13


def test_mixing_shares_are_those_of_the_beta_distribution() -> None:
    found = np.sort(Draws.of(0, 4000, 1, (1, 1)).share.numpy())
    assert found[0] >= 0.5
    theirs = np.random.default_rng(0).beta(0.75, 0.75, 40000)
    for share in (0.1, 0.5, 0.9):
        wanted = np.quantile(np.maximum(theirs, 1 - theirs), share)
        assert np.quantile(found, share) == pytest.approx(wanted, abs=0.02)


def test_no_step_is_the_imprint_of_the_views() -> None:
    task, queries = problem()
    found = TransMatch(steps=0).fit(task).logits(queries)
    assert task.pictures is not None
    views = directions(VIEWS[:2].mean(0))[task.pictures.support]
    wanted = 10 * queries.features @ prototypes(views, task.labels, WAYS).transpose(1, 2)
    torch.testing.assert_close(found, wanted)


def loss_by_hand(config: TransMatch, e: int, step: int, weights: Tensor, scale: float) -> float:
    """One picture at a time."""
    task, _ = problem()
    assert task.pictures is not None
    draws, size = config.draws(task, int(task.numbers[e])), config.batch
    support, pile = task.pictures.support[e], sorted(task.pictures.unlabelled[e].tolist())
    rows, targets = [], []
    for place, view in zip(draws.support[step].tolist(), draws.view[step].tolist(), strict=True):
        rows.append(VIEWS[view % 2][support[place]])
        targets.append([float(LABELS[place] == c) for c in range(WAYS)])
    guesses = []
    for place in draws.unlabelled[step].tolist():
        powers = [
            np.exp([float(scale * (w @ VIEWS[v][pile[place]] / w.norm())) for w in weights])
            for v in (0, 1)
        ]
        mean = sum(p / p.sum() for p in powers) / 2
        guesses.append(mean**2 / (mean**2).sum())
    for view in (0, 1):
        for place, guess in zip(draws.unlabelled[step].tolist(), guesses, strict=True):
            rows.append(VIEWS[view][pile[place]])
            targets.append(guess.tolist())
    share, total = float(draws.share[step]), 0.0
    for i, j in enumerate(draws.partners[step].tolist()):
        mixed = share * rows[i] + (1 - share) * rows[j]
        target = share * np.array(targets[i]) + (1 - share) * np.array(targets[j])
        assert target.sum() == pytest.approx(1)
        cosines = [float(w @ mixed / (w.norm() * mixed.norm())) for w in weights]
        answer = np.exp(scale * np.array(cosines))
        answer /= answer.sum()
        if i < size:
            total -= float((target * np.log(answer)).sum()) / size
        else:
            total += 5 * float(((answer - target) ** 2).sum()) / (2 * size * WAYS)
    return total


def test_the_loss_one_picture_at_a_time() -> None:
    config, (task, _) = TransMatch(batch=4, steps=3), problem()
    seen = Views.of(task, 2)
    draws = [config.draws(task, int(number)) for number in task.numbers]
    weights, scale = drawn(7, EPISODES, WAYS, WIDTH), torch.full((EPISODES, 1, 1), 6.0)
    for step in (0, 2):
        found = config.loss(seen.batch(draws, step), weights, scale)
        for e in range(EPISODES):
            wanted = loss_by_hand(config, e, step, weights[e], 6.0)
            assert found[e].item() == pytest.approx(wanted, rel=1e-4)


def test_without_u_and_mixing_it_is_fine_tuning() -> None:
    config = TransMatch(batch=4, steps=4, weight=0.0, mixes=False, lr=0.05)
    task, queries = problem()
    found = config.fit(task).logits(queries)
    seen = Views.of(task, 2)
    for e in range(EPISODES):
        draws = config.draws(task, int(task.numbers[e]))
        start = prototypes(directions(seen.support.mean(0)), task.labels, WAYS)[e]
        weights, scale = start.clone().requires_grad_(), torch.tensor(10.0, requires_grad=True)
        optimiser = torch.optim.SGD([weights, scale], lr=0.05, momentum=0.9)
        for step in range(4):
            optimiser.zero_grad()
            few = draws.support[step]
            views = seen.support[draws.view[step] % 2, e, few]
            logits = scored(views[None], weights[None], scale)[0]
            cross_entropy(logits, LABELS[few]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            with torch.no_grad():
                weights.copy_(directions(weights))
        wanted = scored(queries.features[e : e + 1], weights[None], scale)[0].detach()
        torch.testing.assert_close(found[e], wanted, rtol=1e-4, atol=1e-4)


def test_the_order_of_u_does_not_matter() -> None:
    task, queries = problem()
    assert task.pictures is not None
    order = torch.randperm(14, generator=torch.Generator().manual_seed(1))
    pictures = dataclasses.replace(task.pictures, unlabelled=task.pictures.unlabelled[:, order])
    shuffled = dataclasses.replace(task, unlabelled=task.unlabelled[:, order], pictures=pictures)
    config = TransMatch(steps=5)
    torch.testing.assert_close(
        config.fit(shuffled).logits(queries), config.fit(task).logits(queries)
    )
