"""What holds for all methods of transport and information, and their parts against plain loops."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import ot
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from fewgraft.methods import method_spec
from fewgraft.methods.base import Method, Queries, Task
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.methods.transductive.alpha_tim import AlphaTIM
from fewgraft.methods.transductive.bavardage import VariationalMixture
from fewgraft.methods.transductive.descent import PAST, adam, course
from fewgraft.methods.transductive.ilpc import (
    LabelCleaning,
    Labelling,
    lowest,
    mean_losses,
    propagator,
)
from fewgraft.methods.transductive.nearness import class_logits
from fewgraft.methods.transductive.power import power_transform
from fewgraft.methods.transductive.pt_map import PowerTransport
from fewgraft.methods.transductive.regression import linear, regressions
from fewgraft.methods.transductive.spans import principal_axes
from fewgraft.methods.transductive.tim import Evidence, GradientTIM
from fewgraft.methods.transductive.transport import Centres, equal_shares, scaled, transport_plan
from fewgraft.prototypes import members_of

pytestmark = pytest.mark.numerical

EPISODES, WAYS, WIDTH, QUERIES = 3, 4, 12, 8
METHODS: dict[str, dict[str, Any]] = {
    "pt-map": {},
    "tim-adm": {},
    "tim-gd": {"steps": 50, "lr": 1e-3},
    "alpha-tim": {"steps": 50, "lr": 1e-3},
    "ilpc": {"neighbours": 5, "moved": 2},
    "proto-lp": {"steps": 20},
    "bavardage": {},
}
every_method = pytest.mark.parametrize("name", METHODS)
UNEQUAL = (0, 0, 0, 1, 2, 2, 3)


def chosen(name: str) -> Method:
    """As registered, with fewer steps where there are many."""
    return method_spec(name).method.changed(**METHODS[name])


def made(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pictures(seed: int, count: int) -> Tensor:
    """Features above 0 around a centre per class, in turn [E, count, d]."""
    centres = made(0, EPISODES, WAYS, WIDTH)[:, torch.arange(count) % WAYS]
    return normalize((centres + 0.6 * made(seed, EPISODES, count, WIDTH)).relu(), dim=-1)


def task(unlabelled: int = 17, labels: tuple[int, ...] = UNEQUAL) -> Task:
    """Classes of different numbers of supports, and of unlabelled pictures."""
    order = torch.tensor(labels)
    support = torch.stack([pictures(1 + i, WAYS)[:, label] for i, label in enumerate(labels)], 1)
    return Task(
        ways=WAYS,
        support=support.float(),
        labels=order.expand(EPISODES, -1),
        unlabelled=pictures(50, unlabelled).float(),
        base_unlabelled=torch.empty(EPISODES, unlabelled, 0),
        weights=torch.empty(0, WIDTH),
        gamma=10.0,
        numbers=torch.arange(EPISODES),
        base_features=normalize(made(60, 6, 9, WIDTH).relu() + 0.01, dim=-1).float(),
    )


def asked(features: Tensor | None = None) -> Queries:
    features = pictures(70, QUERIES).float() if features is None else features
    return Queries(features, torch.empty(*features.shape[:2], 0))


def answers(method: Method, given: Task, queries: Queries | None = None) -> Tensor:
    found = method.fit(given).logits(queries or asked())
    assert found.dtype == torch.float32
    return found


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), rtol=0, atol=2e-4)


# --- what holds for all ---


@every_method
def test_the_same_task_has_the_same_answers(name: str) -> None:
    assert torch.equal(answers(chosen(name), task()), answers(chosen(name), task()))


@every_method
def test_it_learns(name: str) -> None:
    right = answers(chosen(name), task()).argmax(-1) == torch.arange(QUERIES) % WAYS
    assert right.double().mean() > 0.6


@every_method
def test_renamed_classes_rename_columns(name: str) -> None:
    order, given = torch.tensor([2, 0, 3, 1]), task()
    renamed = dataclasses.replace(given, labels=order[given.labels])
    close(answers(chosen(name), renamed)[..., order], answers(chosen(name), given))


@every_method
def test_the_order_of_pictures_does_not_matter(name: str) -> None:
    given = task()
    order = torch.from_numpy(np.random.default_rng(0).permutation(17))
    other = torch.arange(7).flip(0)
    mixed = dataclasses.replace(
        given,
        unlabelled=given.unlabelled[:, order],
        support=given.support[:, other],
        labels=given.labels[:, other],
    )
    close(answers(chosen(name), mixed), answers(chosen(name), given))


@every_method
def test_episodes_do_not_know_each_other(name: str) -> None:
    given, queries = task(), asked()
    parts = ("support", "labels", "unlabelled", "base_unlabelled", "numbers")
    for e in range(EPISODES):
        alone = {part: getattr(given, part)[e : e + 1] for part in parts}
        found = answers(
            chosen(name),
            dataclasses.replace(given, **alone),
            asked(queries.features[e : e + 1]),
        )
        close(found, answers(chosen(name), given)[e : e + 1])


@every_method
def test_a_query_is_answered_alone(name: str) -> None:
    solution, queries = chosen(name).fit(task()), asked()
    few = solution.logits(asked(queries.features[:, 3:5]))
    close(few, solution.logits(queries)[:, 3:5])


@every_method
def test_no_unlabelled_pictures_leave_the_inductive_answer(name: str) -> None:
    given = task(unlabelled=0)
    torch.testing.assert_close(answers(chosen(name), given), answers(NearestPrototype(), given))


@every_method
@pytest.mark.parametrize("unlabelled", [1, 2, 3])
def test_very_few_unlabelled_pictures(name: str, unlabelled: int) -> None:
    assert answers(chosen(name), task(unlabelled)).isfinite().all()


@every_method
@pytest.mark.parametrize("labels", [(0, 1, 2, 3), (0, 1, 2, 3, 3, 3, 3, 3, 3)])
def test_equal_and_very_unequal_shots(name: str, labels: tuple[int, ...]) -> None:
    assert answers(chosen(name), task(labels=labels)).isfinite().all()


@every_method
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0])
def test_constant_features(name: str, value: float) -> None:
    given = task()
    flat = dataclasses.replace(
        given,
        support=torch.full_like(given.support, value),
        unlabelled=torch.full_like(given.unlabelled, value),
    )
    assert answers(chosen(name), flat).isfinite().all()
    base = torch.full_like(pictures(0, 1), value).float().expand(-1, 5, -1)
    everything = dataclasses.replace(flat, base_features=base)
    queries = asked(torch.full_like(asked().features, value))
    assert answers(chosen(name), everything, queries).isfinite().all()


@every_method
def test_duplicates(name: str) -> None:
    given = task()
    twice = torch.cat([given.unlabelled, given.unlabelled[:, :5], given.support], 1)
    found = answers(chosen(name), dataclasses.replace(given, unlabelled=twice))
    assert found.isfinite().all()


@every_method
def test_features_below_0(name: str) -> None:
    given = task()
    below = {part: getattr(given, part) - 0.1 for part in ("support", "unlabelled")}
    found = answers(
        chosen(name), dataclasses.replace(given, **below), asked(asked().features - 0.1)
    )
    assert found.isfinite().all()


@every_method
def test_one_class_and_two(name: str) -> None:
    for ways in (1, 2):
        given = task(labels=tuple(range(ways)) * 2)
        found = answers(chosen(name), dataclasses.replace(given, ways=ways))
        assert found.shape == (EPISODES, QUERIES, ways)
        assert found.isfinite().all()


@pytest.mark.parametrize("name", ["pt-map", "proto-lp", "ilpc"])
def test_queries_answered_together_are_shared_out(name: str) -> None:
    found = answers(chosen(name).changed(together=True), task()).argmax(-1)
    assert not torch.equal(found, answers(chosen(name), task()).argmax(-1)) or name == "ilpc"
    counts = members_of(found, WAYS, torch.float64).sum(1)
    assert (counts >= 1).all()
    assert (counts <= QUERIES / WAYS + 1).all()


def test_who_assumes_balance() -> None:
    balanced = {name for name in METHODS if method_spec(name).balanced}
    assert balanced == {"pt-map", "tim-adm", "tim-gd", "ilpc", "proto-lp"}


# --- transport ---


def test_plans_are_those_of_another_library() -> None:
    costs, shares = made(1, 3, 9, 4).square(), torch.tensor([[2.0, 1.0, 4.0, 2.0]]).expand(3, -1)
    plans = transport_plan(-5 * costs, shares, 1e-12)
    torch.testing.assert_close(plans.sum(2), torch.ones(3, 9, dtype=torch.float64))
    torch.testing.assert_close(plans.sum(1), shares.double())
    for plan, cost in zip(plans, costs, strict=True):
        expected = ot.sinkhorn(
            np.ones(9),
            shares[0].double().numpy(),
            cost.numpy(),
            1 / 5,
            "sinkhorn_log",
            stopThr=1e-12,
        )
        torch.testing.assert_close(plan, torch.from_numpy(expected), rtol=1e-6, atol=1e-9)


def test_an_episode_stops_by_itself() -> None:
    logs = made(2, 4, 7, 3) * torch.tensor([0.1, 1.0, 10.0, 30.0])[:, None, None]
    together = transport_plan(logs, equal_shares(logs))
    for e in range(4):
        alone = transport_plan(logs[e : e + 1], equal_shares(logs[e : e + 1]))
        assert torch.equal(alone[0], together[e])


def test_rows_that_take_no_part_are_as_if_they_were_not_there() -> None:
    logs, taking = made(3, 2, 6, 3), torch.tensor([True, False, True, True, False, True])
    shares = torch.tensor([[2.0, 2.0, 0.0]]).expand(2, -1)
    plan = transport_plan(logs, shares, taking=taking.expand(2, -1))
    torch.testing.assert_close(plan[:, taking], transport_plan(logs[:, taking], shares))
    assert (plan[:, ~taking] == 0).all()
    assert (plan[..., 2] == 0).all(), "a share of 0"


def test_costs_far_apart_are_no_harm() -> None:
    logs = made(4, 2, 5, 3) * 1e4
    assert transport_plan(logs, equal_shares(logs)).isfinite().all()


def test_fixed_rows_stay_and_count() -> None:
    fixed = torch.eye(3, dtype=torch.float64)[None, :2]
    matrix = torch.cat([made(5, 1, 2, 3).exp(), made(6, 1, 7, 3).exp()], 1)
    found = scaled(matrix, torch.full((1, 3), 3.0), 1e-10, fixed)
    assert torch.equal(found[:, :2], fixed)
    torch.testing.assert_close(found.sum(1), torch.full((1, 3), 3.0, dtype=torch.float64))


def test_a_centre_that_does_not_move_is_the_mean_of_the_support() -> None:
    still, moved = PowerTransport(alpha=0.0).fit(task()), PowerTransport().fit(task())
    assert isinstance(still, Centres)
    assert isinstance(moved, Centres)
    placed = power_transform(task().support.double(), 0.5, "signed")
    placed = normalize(placed - placed.mean(1, keepdim=True), dim=-1)
    torch.testing.assert_close(still.centres[:, 0], placed[:, :3].mean(1))
    assert not torch.allclose(moved.centres, still.centres)


def test_the_power_transform() -> None:
    features = torch.tensor([0.0, 0.25, -0.25])
    signed, cut = (power_transform(features, 0.5, kind) for kind in ("signed", "cut"))
    torch.testing.assert_close(
        signed, normalize(torch.tensor([1e-3, 0.5, -0.5]), dim=0), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        cut, normalize(torch.tensor([1e-3, 0.5, 1e-3]), dim=0), atol=1e-5, rtol=0
    )
    assert torch.equal(power_transform(features, 1.0, "cut"), normalize(features, dim=0))


@pytest.mark.parametrize("pictures", [5, 30])
def test_principal_axes_are_singular_vectors(pictures: int) -> None:
    features = made(7, 2, pictures, 9)
    axes = principal_axes(features, 4)
    _, _, expected = torch.linalg.svd(features, full_matrices=False)
    expected = expected[:, :4].transpose(1, 2)
    torch.testing.assert_close(
        axes @ axes.transpose(1, 2), expected @ expected.transpose(1, 2), rtol=0, atol=1e-9
    )
    flat = principal_axes(features[:, :1].expand(-1, pictures, -1), 4)
    assert flat.isfinite().all()


# --- information ---


def naive_loss(method: GradientTIM | AlphaTIM, given: Evidence, weights: Tensor) -> Tensor:
    """The loss as the papers write it, summed over episodes."""
    n = given.supports
    p = class_logits(given.features, weights, method.temperature / 2).softmax(1).transpose(1, 2)
    ce = -(given.members.transpose(1, 2) * p[:, :n].log()).sum(-1).mean(1)
    alpha = method.alpha if isinstance(method, AlphaTIM) else None

    def entropy(q: Tensor) -> Tensor:
        if alpha is None:
            return -(q * q.log()).sum(-1)
        return (1 - (q**alpha).sum(-1)) / (alpha - 1)

    spread, decided = entropy(p[:, n:].mean(1)), entropy(p[:, n:]).mean(1)
    loss = method.w_support * ce - method.w_marginal * spread + method.w_conditional * decided
    return loss.sum()


@pytest.mark.parametrize("method", [GradientTIM(), AlphaTIM(alpha=2.0), AlphaTIM(alpha=7.0)])
def test_the_gradient_is_that_of_the_loss(method: GradientTIM | AlphaTIM) -> None:
    given = task()
    features = torch.cat([given.support, given.unlabelled], 1).double()
    members = members_of(given.labels, WAYS, torch.float64).transpose(1, 2)
    evidence = Evidence(features, members)
    weights = made(8, EPISODES, WAYS, WIDTH).requires_grad_()
    [expected] = torch.autograd.grad(naive_loss(method, evidence, weights), weights)
    torch.testing.assert_close(method.gradient(evidence, weights.detach()), expected)


def test_alpha_near_1_is_shannons_entropy() -> None:
    shared = {"steps": 20, "lr": 1e-3, "w_support": 0.3, "w_marginal": 1.0, "w_conditional": 0.5}
    plain = answers(GradientTIM().changed(**shared), task())
    close(answers(AlphaTIM().changed(**shared, alpha=1.001), task()), plain)
    assert not torch.allclose(answers(AlphaTIM().changed(**shared, alpha=7.0), task()), plain)


def test_alpha_is_the_authors_for_so_many_shots() -> None:
    for shots, alpha in ((1, 2.0), (5, 7.0)):
        given = task(labels=tuple(range(WAYS)) * shots)
        few = AlphaTIM(steps=20, lr=1e-3)
        assert torch.equal(answers(few, given), answers(few.changed(alpha=alpha), given))


# --- label cleaning ---


def test_losses_are_those_of_a_linear_layer_in_training() -> None:
    features = normalize(made(9, 1, 10, 6), dim=-1)
    labels = torch.arange(10) % 3
    targets = members_of(labels[None], 3, torch.float64)
    members = targets * (torch.arange(10) < 3)[None, :, None]
    used = torch.arange(10) != 7
    found = mean_losses(features, members, targets, used[None])[0]
    layer = torch.nn.Linear(6, 3).double()
    layer.weight.data, layer.bias.data = features[0, :3].clone(), torch.zeros(3).double()
    descent = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    total = torch.zeros(10, dtype=torch.float64)
    for _ in range(1000):
        losses = cross_entropy(layer(features[0]), labels, reduction="none")
        total += losses.detach()
        descent.zero_grad()
        losses[used].mean().backward()  # type: ignore[no-untyped-call]
        descent.step()
    torch.testing.assert_close(found, total / 1000, rtol=1e-4, atol=1e-5)


def test_long_steps_lead_where_short_ones_do() -> None:
    """A descent whose gradients are a cubic in time is followed exactly, and its mean too."""
    way, x, total = course(200, 0.9, 8), torch.zeros(1).double(), 0.0

    def gradient(step: int) -> float:
        return (step / 200) ** 3 - 0.3 * step / 200 + 0.1

    state = torch.zeros(1 + PAST, 1, dtype=torch.float64)
    for i, weight in enumerate(way.shares):
        total += weight * x.item()
        state[1 + i % PAST] = gradient(way.looks[i])
        if i < len(way.moves):
            speed, moved, expected = way.moves[i] @ state
            if i >= PAST:
                assert expected.item() == pytest.approx(gradient(way.looks[i + 1]))
            state[0], x = speed, x - moved
    speed, place, places = 0.0, 0.0, []
    for step in range(200):
        places.append(place)
        speed = 0.9 * speed + gradient(step)
        place -= speed
    assert len(way.looks) < 110
    assert way.looks[-1] == 199
    assert x.item() == pytest.approx(places[-1])
    assert total == pytest.approx(sum(places) / 200, rel=1e-5)


def adam_by_torch(function: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    values = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([values], lr=1e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        [values.grad] = torch.autograd.grad(function(values), values)
        optimiser.step()
    return values.detach()


def test_adam_looks_at_some_gradients_and_ends_where_all_lead() -> None:
    """A smooth valley with long steps; one whose walls are steep for them, step by step."""
    start, looks = made(22, 2, 3, 4), []

    def valley(x: Tensor, e: Tensor) -> Tensor:
        steep = torch.where(e == 1, 400.0, 1.0)[:, None, None]
        return (steep * x).sin() / steep + 0.1 * x**2

    def slope(x: Tensor, e: Tensor) -> Tensor:
        looks.append(e.tolist())
        x = x.clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(valley(x, e).sum(), x)[0]

    found = adam(slope, start, 300, 1e-3)
    expected = adam_by_torch(lambda x: valley(x, torch.arange(2)).sum(), start, 300)
    torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(found[1], expected[1], atol=1e-9, rtol=0)
    assert looks.count([0, 1]) < 160
    assert looks.count([1]) == 300


def test_episodes_whose_descent_is_not_smooth_are_followed_step_by_step() -> None:
    """Labels at random between two classes: the bias swings as long as steps are long."""
    features = normalize(made(21, 2, 40, 8), dim=-1)
    labels = torch.arange(80).reshape(2, 40) * 7 % 11 % 2
    targets = members_of(labels, 2, torch.float64)
    members, used = targets * (torch.arange(40) < 4)[None, :, None], torch.ones(2, 40).bool()
    found = mean_losses(features, members, targets, used)
    weights = normalize(members.transpose(1, 2) @ features, dim=-1)
    bias, total = torch.zeros(2, 2, 1).double(), torch.zeros(2, 40).double()
    speed, bias_speed = torch.zeros_like(weights), torch.zeros_like(bias)
    for _ in range(1000):
        logs = (weights @ features.transpose(1, 2) + bias).log_softmax(1).transpose(1, 2)
        total -= (logs * targets).sum(-1)
        pull = (logs.exp() - targets).transpose(1, 2) / 40
        speed = 0.9 * speed + pull @ features + 5e-4 * weights
        bias_speed = 0.9 * bias_speed + pull.sum(2, keepdim=True) + 5e-4 * bias
        weights, bias = weights - 0.1 * speed, bias - 0.1 * bias_speed
    torch.testing.assert_close(found, total / 1000, rtol=1e-4, atol=1e-5)


def test_the_graph_against_its_definition() -> None:
    features = normalize(made(10, 1, 9, 4), dim=-1)
    factor, x = propagator(features, 3, 0.8)[0], features[0]
    edges = torch.zeros(9, 9, dtype=torch.float64)
    for i in range(9):
        others = sorted((j for j in range(9) if j != i), key=lambda j: -float(x[i] @ x[j]))
        for j in others[:3]:
            edges[i, j] = max(0.0, float(x[i] @ x[j])) ** 3
    edges = edges + edges.T
    scale = edges.sum(1).pow(-0.5)
    expected = torch.eye(9) - 0.8 * scale[:, None] * edges * scale
    torch.testing.assert_close(factor @ factor.T, expected)


def test_the_lowest_of_each_group() -> None:
    values = torch.tensor([[3.0, 1.0, 2.0, 5.0, 4.0]])
    groups = members_of(torch.tensor([[0, 0, 0, 1, 1]]), 3, torch.float64).bool()
    groups[0, 4] = False  # in none
    assert lowest(values, groups, 2).tolist() == [[False, True, True, True, False]]


def test_all_of_the_pile_gets_labels_and_shares_run_out() -> None:
    given, method = task(unlabelled=20), LabelCleaning(neighbours=5)
    features, _ = method.placed(given.support, given.unlabelled)
    found = method.cleaned(features, given.labels, WAYS, remaining=True)
    assert (found.members()[:, :7].argmax(-1) == given.labels).all(), "the support keeps its labels"
    state = Labelling.begin(given.labels, 20, WAYS)
    assert (state.remaining_shares() == 5).all()
    three = torch.zeros(EPISODES, 27, dtype=torch.bool).index_fill(1, torch.tensor([7, 8, 9]), True)
    state = state.moved(three, 0)  # guesses are of class 0
    assert state.remaining_shares().tolist() == [[2, 5, 5, 5]] * EPISODES


@pytest.mark.parametrize("ways", [2, 3])
def test_the_regression_is_scikit_learns(ways: int) -> None:
    features, labels = made(11, 2, 12, 5), (torch.arange(12) % ways).expand(2, -1)
    found = linear(features, regressions(features, labels, ways, 10.0)).log_softmax(-1)
    for x, y, logs in zip(features, labels, found, strict=True):
        model = LogisticRegression(C=10.0, max_iter=1000).fit(x.numpy(), y.numpy())
        expected = torch.from_numpy(model.predict_log_proba(x.numpy()))
        torch.testing.assert_close(logs, expected, rtol=0, atol=1e-7)


# --- the mixture ---


def test_a_rotation_of_all_features_changes_nothing() -> None:
    turn, given = torch.linalg.qr(made(12, WIDTH, WIDTH))[0].float(), task()
    assert given.base_features is not None
    turned = dataclasses.replace(
        given,
        support=given.support @ turn,
        unlabelled=given.unlabelled @ turn,
        base_features=given.base_features @ turn,
    )
    method = VariationalMixture()
    close(answers(method, turned, asked(asked().features @ turn)), answers(method, given))


def test_shares_of_classes_are_inferred_unless_balanced() -> None:
    """A pile of one class alone draws doubtful queries to it."""
    given = dataclasses.replace(task(), unlabelled=pictures(50, 32)[:, ::WAYS].float())
    free, balanced = (
        answers(VariationalMixture(balanced=fixed), given).softmax(-1)[..., 0].mean()
        for fixed in (False, True)
    )
    assert free > balanced
