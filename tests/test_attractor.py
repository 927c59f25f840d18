"""Attractor: a float64 reference, finite differences, and limits where it is simpler."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, pad

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.incremental import attractor
from fewgraft.methods.incremental.attractor import (
    DAMPING,
    ITERATIONS,
    Attractor,
    FixedPoint,
    Problem,
    attractors,
    recurrent,
    solve,
)
from fewgraft.prototypes import direction_logits, directions, prototypes

pytestmark = pytest.mark.numerical

GOLDEN = np.load(Path(__file__).parent / "data" / "rivals" / "attractor_own.npz")
NAMES = {
    "tau": "tau",
    "inner": "w1",
    "inner_bias": "b1",
    "outer": "w2",
    "outer_bias": "b2",
    "offset": "bias",
    "log_pull": "log_gamma",
}
WAYS, BASE = 5, 8


def golden(name: str) -> Tensor:
    return torch.from_numpy(np.array(GOLDEN[name]))


def close(found: Tensor, wanted: Tensor, rtol: float = 1e-4, atol: float = 1e-7) -> None:
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)


def fixed_point(shots: int, learnt: dict[str, Tensor], gradient: str) -> Tensor:
    u, pull = pulled(shots, learnt), learnt["log_pull"].exp()
    found: Tensor = FixedPoint.apply(u, pull, problem(shots), gradient)  # type: ignore[no-untyped-call]
    return found


def pieces(shots: int) -> dict[str, Tensor]:
    found = {own: golden(f"s{shots}_param_{theirs}") for own, theirs in NAMES.items()}
    return {name: tensor.clone().requires_grad_() for name, tensor in found.items()}


def problem(shots: int) -> Problem:
    support, weights = golden(f"s{shots}_support")[None], golden(f"s{shots}_W")
    return Problem(
        pictures=pad(support, (0, 1), value=1.0),
        base=(support @ weights + golden(f"s{shots}_b")).logsumexp(-1),
        answers=one_hot(golden(f"s{shots}_labels")[None], WAYS).double(),
    )


def pulled(shots: int, learnt: dict[str, Tensor]) -> Tensor:
    base = golden(f"s{shots}_W").T
    labels = golden(f"s{shots}_labels")[None]
    means = prototypes(golden(f"s{shots}_support")[None], labels, WAYS, normalise=False)
    shares = (learnt["tau"] * attractor._cosines(means, base)).softmax(-1)
    return attractors(learnt, base, shares)


def query_loss(shots: int, t: Tensor) -> tuple[Tensor, Tensor]:
    query = golden(f"s{shots}_query")
    base = query @ golden(f"s{shots}_W") + golden(f"s{shots}_b")
    logits = torch.cat([base, pad(query, (0, 1), value=1.0) @ t[0]], -1)
    return cross_entropy(logits, golden(f"s{shots}_query_labels")), logits


@pytest.mark.parametrize("shots", [1, 5])
def test_the_reference(shots: int) -> None:
    at, learnt, given = f"s{shots}_", pieces(shots), problem(shots)
    pull = learnt["log_pull"].exp()
    u = pulled(shots, learnt)
    close(u[0], golden(at + "attractors"), 1e-5, 1e-9)
    found = solve(given, u.detach(), pull.detach())
    torch.testing.assert_close(found[0], golden(at + "solution"), rtol=1e-5, atol=1e-6)
    close(given.energy(found, u, pull)[0], golden(at + "energy"), 1e-5, 1e-9)
    assert given.gradient(found, u, pull).abs().max() < 1e-6
    loss, logits = query_loss(shots, found.requires_grad_())
    torch.testing.assert_close(logits, golden(at + "query_logits"), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss, golden(at + "query_loss"), rtol=1e-6, atol=0)
    (v,) = torch.autograd.grad(loss, found)
    close(v.flatten(), golden(at + "v0"))
    shares = given.shares(found.detach())
    with torch.no_grad():
        s = recurrent(given, v, shares, pull, ITERATIONS)
        close(s.flatten(), golden(at + "rbp20"))
        endless = recurrent(given, v, shares, pull, 2000)
        close(endless.flatten(), golden(at + "damped"))
        stiffness = given.stiffness(pull)
        damped = given.hessian_solve(v, shares, stiffness + DAMPING)
        close(damped.flatten(), golden(at + "damped"))
        exact = given.hessian_solve(v, shares, stiffness)
        close(exact.flatten(), golden(at + "exact"))


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize(("gradient", "name"), [("recurrent", "rbp20"), ("exact", "exact")])
def test_the_references_gradients(shots: int, gradient: str, name: str) -> None:
    learnt = pieces(shots)
    found = fixed_point(shots, learnt, gradient)
    query_loss(shots, found)[0].backward()  # type: ignore[no-untyped-call]
    for own, theirs in NAMES.items():
        got = learnt[own].grad
        assert got is not None
        close(got, golden(f"s{shots}_metagrad_{name}_{theirs}"))


@pytest.mark.parametrize("shots", [1, 5])
def test_the_exact_gradient_by_finite_differences(shots: int) -> None:
    learnt = {name: tensor.detach() for name, tensor in pieces(shots).items()}

    def loss(**changes: Tensor) -> float:
        now = {**learnt, **changes}
        found = solve(problem(shots), pulled(shots, now), now["log_pull"].exp())
        return float(query_loss(shots, found)[0])

    for name in ("tau", "offset", "log_pull"):
        moved = torch.zeros_like(learnt[name])
        moved.view(-1)[0] = 1e-4
        slope = (loss(**{name: learnt[name] + moved}) - loss(**{name: learnt[name] - moved})) / 2e-4
        wanted = golden(f"s{shots}_metagrad_exact_{NAMES[name]}").view(-1)[0]
        assert slope == pytest.approx(float(wanted), rel=1e-3, abs=1e-7)


def random_problem(seed: int = 0, base: bool = True) -> tuple[Problem, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 10, 7, generator=rng, dtype=torch.float64)
    labels = torch.arange(10).remainder(WAYS).expand(3, 10)
    logits = torch.randn(3, 10, generator=rng, dtype=torch.float64) if base else torch.tensor(-1e9)
    u = torch.randn(3, 7, WAYS, generator=rng, dtype=torch.float64)
    pull = torch.rand(7, generator=rng, dtype=torch.float64)
    return Problem(x, logits.expand(3, 10), one_hot(labels, WAYS).double()), u, pull


def test_gradient_and_curvature_by_finite_differences() -> None:
    given, u, pull = random_problem()
    rng = torch.Generator().manual_seed(1)
    t, v = (torch.randn(3, 7, WAYS, generator=rng, dtype=torch.float64) for _ in range(2))
    step = 1e-6 * v
    slopes = (given.energy(t + step, u, pull) - given.energy(t - step, u, pull)) / 2e-6
    torch.testing.assert_close((given.gradient(t, u, pull) * v).sum((1, 2)), slopes)
    bends = (given.gradient(t + step, u, pull) - given.gradient(t - step, u, pull)) / 2e-6
    curved = given.hessian_times(v, given.shares(t), pull)
    torch.testing.assert_close(curved, bends, rtol=1e-5, atol=1e-7)
    back = given.hessian_solve(curved, given.shares(t), given.stiffness(pull))
    torch.testing.assert_close(back, v)


def test_two_starts_one_solution_and_repeated_supports() -> None:
    given, u, pull = random_problem()
    first = solve(given, u, pull)
    torch.testing.assert_close(solve(given, u, pull, 30 * torch.ones_like(u)), first)
    twice = Problem(*(torch.cat([part, part], 1) for part in vars(given).values()))
    torch.testing.assert_close(solve(twice, u, pull), first)
    one = Problem(*(part[1:2] for part in vars(given).values()))
    torch.testing.assert_close(solve(one, u[1:2], pull), first[1:2])


def test_strong_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    given, u, pull = random_problem()
    torch.testing.assert_close(solve(given, u, 1e8 * (1 + pull)), u, rtol=1e-6, atol=1e-6)
    monkeypatch.setattr(attractor, "DECAY", 1e8)
    assert solve(given, u, 0 * pull).abs().max() < 1e-6


def test_attention_that_says_nothing() -> None:
    learnt = {name: tensor.detach() for name, tensor in pieces(5).items()}
    still = pulled(5, {**learnt, "outer": torch.zeros_like(learnt["outer"])})
    static = (learnt["outer_bias"] + learnt["offset"])[None, :, None]
    torch.testing.assert_close(still, static.expand_as(still))
    dull = pulled(5, {**learnt, "tau": torch.tensor(0.0, dtype=torch.float64)})
    torch.testing.assert_close(dull, dull[..., :1].expand_as(dull))


def a_task(absent: Tensor | None = None) -> tuple[Task, Queries]:
    rng = torch.Generator().manual_seed(0)
    d, weights = 12, torch.randn(BASE, 12, generator=rng)
    support, query = (directions(torch.randn(2, n, d, generator=rng)) for n in (10, 6))
    learnt = Attractor(hidden=6).initial(weights, 10.0, 1, rng)
    learnt = {n: t + 0.3 * torch.randn(t.shape, generator=rng) for n, t in learnt.items()}
    task = Task(
        ways=WAYS,
        support=support,
        labels=torch.arange(10).remainder(WAYS).expand(2, 10),
        unlabelled=support[:, :0],
        base_unlabelled=torch.empty(2, 0, BASE),
        weights=weights,
        gamma=10.0,
        numbers=torch.arange(2),
        learnt=learnt,
        absent=absent,
    )
    return task, Queries(query, task.strike(direction_logits(query, weights, 10.0)))


def test_absent_classes_are_as_if_they_were_not_there() -> None:
    task, queries = a_task(absent=torch.tensor([[2], [2]]))
    there = [k for k in range(BASE) if k != 2]
    without = dataclasses.replace(task, weights=task.weights[there], absent=None)
    few = Queries(queries.features, queries.base_logits[..., there])
    logits = Attractor().fit(task).logits(queries)
    assert (logits[..., 2] == float("-inf")).all()
    torch.testing.assert_close(
        logits[..., [*there, *range(BASE, BASE + WAYS)]], Attractor().fit(without).logits(few)
    )


@pytest.mark.parametrize("absent", [None, torch.tensor([[2], [7]])])
def test_training_drops_entries_once_and_the_loss_has_gradients(absent: Tensor | None) -> None:
    task, queries = a_task(absent)
    learnt = {name: tensor.clone().requires_grad_() for name, tensor in (task.learnt or {}).items()}
    task = dataclasses.replace(task, learnt=learnt)
    labels = torch.tensor([0, 1, 3, 8, 9, 12]).expand(2, 6)

    def loss(method: Attractor, seed: int) -> Tensor:
        return method.loss(task, queries, labels, torch.Generator().manual_seed(seed))[0]

    assert loss(Attractor(), 0) == loss(Attractor(), 0)
    assert loss(Attractor(), 0) != loss(Attractor(), 1)
    plain = Attractor(dropout=0.0)
    logits = plain.fit(task).logits(queries)
    expected = cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(loss(plain, 0), expected)
    loss(Attractor(), 0).backward()  # type: ignore[no-untyped-call]
    assert all(t.grad is not None and t.grad.abs().sum() > 0 for t in learnt.values())
