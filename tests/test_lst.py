"""LST on features: autograd and loops, and limits in which it is something simpler."""

import pytest
import torch
from novel_tasks import novel_task
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.transductive.lst import (
    FIRST_STEPS,
    LAST_STEPS,
    STEPS,
    OwnTeaching,
    SelfTrainedWeights,
    SelfTraining,
    soft_weights,
)
from fewgraft.prototypes import directions, prototypes

pytestmark = pytest.mark.numerical
EPISODES, WAYS, WIDTH, UNLABELLED = 2, 3, 8, 14
LABELS = torch.tensor([0, 1, 1, 2, 2, 2])


def drawn(seed: int, *shape: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def pieces(trained: bool = True) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    found = SelfTraining().initial(torch.empty(4, WIDTH), 10.0, 1, rng)
    found = {name: piece.double() for name, piece in found.items()}
    if trained:
        found |= {
            "out": drawn(5, 1, 8),
            "first_bias": drawn(6, 64),
            "start": torch.tensor(0.7).double(),
        }
    return found


def problem(learnt: dict[str, Tensor]) -> tuple[Task, Queries]:
    sizes = (UNLABELLED, 9, len(LABELS))
    unlabelled, queries, support = (
        directions(drawn(seed, EPISODES, size, WIDTH)) for seed, size in enumerate(sizes)
    )
    return novel_task(support, LABELS, unlabelled, queries, learnt=learnt)


def weighed_by_hand(u: Tensor, mean: Tensor, learnt: dict[str, Tensor]) -> Tensor:
    given = torch.cat([u, mean, (u - mean).abs()])
    hidden = torch.nn.functional.leaky_relu(learnt["first"] @ given + learnt["first_bias"])
    hidden = torch.nn.functional.leaky_relu(learnt["second"] @ hidden + learnt["second_bias"])
    return (learnt["out"] @ hidden)[0]


def fitted_by_hand(task: Task, e: int, config: SelfTraining, learnt: dict[str, Tensor]) -> Tensor:
    """One episode by autograd, one picture at a time."""
    support, pile = task.support[e], task.unlabelled[e]
    means = torch.stack([directions(support[c == LABELS].mean(0)) for c in range(WAYS)])
    soft = torch.stack(
        [torch.stack([weighed_by_hand(u, mean, learnt) for mean in means]).softmax(0) for u in pile]
    )

    def descend(weights: Tensor, steps: int, guesses: list[tuple[int, int]]) -> Tensor:
        weights = weights.detach().clone().requires_grad_()
        optimiser = torch.optim.SGD([weights], lr=config.lr)
        for _ in range(steps):
            optimiser.zero_grad()
            loss = cross_entropy(10 * support @ weights.T, LABELS)
            for u, label in guesses:
                scores = soft[u] * (10 * weights @ pile[u])
                loss = loss + cross_entropy(scores[None], torch.tensor([label])) / len(guesses)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return weights.detach()

    start = learnt["start"] * means
    weights = descend(start, FIRST_STEPS, [])
    for _ in range(config.stages):
        shares = (10 * pile @ weights.T).softmax(-1)
        guesses = []
        for c in range(WAYS):
            own = [u for u in range(UNLABELLED) if int(shares[u].argmax()) == c]
            own.sort(key=lambda u: -float(shares[u].max()))
            guesses += [(u, c) for u in own[: config.per_class]]
        weights = descend(descend(start, STEPS[0], guesses), STEPS[1], [])
    return descend(weights, LAST_STEPS, [])


@pytest.mark.parametrize("config", [SelfTraining(2, 2), SelfTraining(20, 1), SelfTraining(5, 0)])
def test_one_picture_at_a_time(config: SelfTraining) -> None:
    learnt = pieces()
    task, queries = problem(learnt)
    solution = config.fit(task)
    assert isinstance(solution, SelfTrainedWeights)
    for e in range(EPISODES):
        wanted = fitted_by_hand(task, e, config, learnt)
        torch.testing.assert_close(solution.weights[e], wanted, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(
            solution.logits(queries)[e], 10 * queries.features[e] @ wanted.T, rtol=1e-5, atol=1e-5
        )


def test_equally_many_of_each_class_are_chosen() -> None:
    logits = drawn(0, EPISODES, 40, WAYS)
    found = SelfTraining(per_class=3).guesses(logits)
    assert (found.sum(1) == 3).all()
    chosen = found.sum(-1) == 1
    for e in range(EPISODES):
        for c in range(WAYS):
            own = logits[e].argmax(-1) == c
            sure = logits[e].softmax(-1).amax(-1)
            assert sure[own & chosen[e]].min() > sure[own & ~chosen[e]].max()


def test_an_untrained_network_weighs_all_classes_the_same() -> None:
    task, _ = problem(pieces(trained=False))
    means = prototypes(task.support, task.labels, WAYS)
    found = soft_weights(task.unlabelled, means, pieces(trained=False))
    torch.testing.assert_close(found, torch.full_like(found, 1 / WAYS))
    given = OwnTeaching.of(task, found, 0.01)
    guesses = SelfTraining().guesses(given.scores(task.unlabelled, means))
    moved = given.descended(means, 3, guesses)
    for e in range(EPISODES):  # plain self-training, with logits divided by the classes
        weights = means[e].clone().requires_grad_()
        for _ in range(3):
            loss = cross_entropy(10 * task.support[e] @ weights.T, LABELS)
            loss = loss + cross_entropy(
                10 * task.unlabelled[e] @ weights.T / WAYS, guesses[e].argmax(-1)
            )
            [slope] = torch.autograd.grad(loss, weights)
            weights = (weights - 0.01 * slope).detach().requires_grad_()
        torch.testing.assert_close(moved[e], weights.detach())


def test_the_loss_reaches_all_that_is_learnt() -> None:
    learnt = {name: piece.requires_grad_() for name, piece in pieces().items()}
    task, queries = problem(learnt)
    labels = (torch.arange(9) % WAYS).expand(EPISODES, -1)
    found, logits = SelfTraining().loss(task, queries, labels, torch.Generator())
    assert logits.shape == (EPISODES, 9, WAYS)
    found.backward()  # type: ignore[no-untyped-call]
    assert all(piece.grad is not None and (piece.grad != 0).any() for piece in learnt.values())
    nudged = {name: piece.detach().clone() for name, piece in learnt.items()}
    nudged["second_bias"][1] += 1e-6
    other, _ = SelfTraining().loss(problem(nudged)[0], queries, labels, torch.Generator())
    slope = learnt["second_bias"].grad
    assert slope is not None
    assert (other - found).item() / 1e-6 == pytest.approx(slope[1].item(), rel=1e-3, abs=1e-7)
