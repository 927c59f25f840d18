"""Methods of novel classes alone, beside base classes: against one episode and query at a time."""

import dataclasses
from typing import get_args

import pytest
import torch
from torch import Tensor

from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec, methods
from fewgraft.methods.base import Queries, Solution, Task
from fewgraft.methods.beside_base import BesideBase, Decides
from fewgraft.methods.soft_k_means import SoftKMeans
from fewgraft.prototypes import directions

pytestmark = pytest.mark.numerical
EPISODES, WAYS, BASE, WIDTH, GAMMA = 3, 3, 4, 8, 10.0


def unit(*shape: int, seed: int) -> Tensor:
    return directions(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


def problem() -> tuple[Task, Queries]:
    weights = unit(BASE, WIDTH, seed=0)
    unlabelled, queries = unit(EPISODES, 20, WIDTH, seed=1), unit(EPISODES, 6, WIDTH, seed=2)
    task = Task(
        ways=WAYS,
        support=unit(EPISODES, WAYS, WIDTH, seed=3),
        labels=torch.arange(WAYS).expand(EPISODES, WAYS),
        unlabelled=unlabelled,
        base_unlabelled=GAMMA * unlabelled @ weights.T,
        weights=weights,
        gamma=GAMMA,
        numbers=torch.arange(EPISODES),
    )
    return task, Queries(queries, GAMMA * queries @ weights.T)


def one_by_one(method: BesideBase, task: Task, queries: Queries) -> Tensor:
    rows = []
    for e in range(EPISODES):
        own = [
            u for u in task.unlabelled[e] if (task.support[e] @ u).max() > (task.weights @ u).max()
        ]
        assert 0 < len(own) < 20
        alone = dataclasses.replace(
            task,
            support=task.support[e : e + 1],
            labels=task.labels[e : e + 1],
            unlabelled=torch.stack(own)[None],
            base_unlabelled=torch.empty(1, len(own), 0),
            weights=torch.empty(0, WIDTH),
            numbers=task.numbers[e : e + 1],
        )
        learnt = method.inner.fit(alone)

        def scores(picture: Tensor, learnt: Solution = learnt) -> Tensor:
            asked = Queries(picture[None, None], torch.empty(1, 1, 0))
            return method.scale * learnt.logits(asked)[0, 0]

        groups = [[support] for support in task.support[e]]
        if method.decides == "means":
            for u in own:
                groups[int(scores(u).argmax())].append(u)
        places = directions(torch.stack([torch.stack(group).mean(0) for group in groups]))
        for q in queries.features[e]:
            novel = scores(q)
            if method.decides != "scores":
                shares = novel.exp() / novel.exp().sum()
                novel = ((GAMMA * places @ q).exp().sum() * shares).log()
            rows.append(torch.cat([GAMMA * task.weights @ q, novel + GAMMA * method.level]))
    return torch.stack(rows).view(EPISODES, -1, BASE + WAYS)


@pytest.mark.parametrize("decides", get_args(Decides))
@pytest.mark.parametrize(("scale", "level"), [(1.0, 0.0), (0.3, -0.2)])
def test_against_one_by_one(decides: Decides, scale: float, level: float) -> None:
    task, queries = problem()
    method = BesideBase(SoftKMeans(), scale, decides, level)
    found = method.fit(task).logits(queries)
    torch.testing.assert_close(found, one_by_one(method, task, queries))


GAPS = [name for name, spec in methods().items() if spec.method.takes_gaps and not spec.joint]


@pytest.mark.parametrize("name", GAPS)
def test_episodes_of_different_sizes_at_once(name: str) -> None:
    """Against one at a time: what one episode lacks is no picture of another."""
    task, queries = problem()
    method = BesideBase(method_spec(name).method, 1.0, "means")
    left = (task.support @ task.unlabelled.mT).amax(1) > (task.weights @ task.unlabelled.mT).amax(1)
    assert len(set(left.sum(1).tolist())) > 1
    found = method.fit(task)
    assert len(found.answers.parts) == 1
    expected = one_by_one(method, task, queries)
    torch.testing.assert_close(found.logits(queries), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", GAPS)
def test_an_episode_with_nothing_left_beside_others(name: str) -> None:
    task, queries = problem()
    base = task.base_unlabelled.clone()
    base[1] = 2 * GAMMA
    task = dataclasses.replace(task, base_unlabelled=base)
    found = BesideBase(method_spec(name).method).fit(task).logits(queries)
    plain = torch.cat([queries.base_logits, GAMMA * queries.features @ task.support.mT], -1)
    torch.testing.assert_close(found[1], plain[1])
    assert not torch.allclose(found[0], plain[0])


def test_one_fit_serves_every_way_and_scale() -> None:
    """What X said of other queries is not taken for an answer."""
    task, queries = problem()
    others = Queries(queries.features.flip(1), queries.base_logits.flip(1))
    fitted = BesideBase(SoftKMeans()).fit(task)
    for decides in get_args(Decides):
        method = BesideBase(SoftKMeans(), 3.0, decides, 0.1)
        solution = dataclasses.replace(fitted, config=method)
        for asked in (queries, others, queries):
            expected = method.fit(task).logits(asked)
            torch.testing.assert_close(solution.logits(asked), expected)


@pytest.mark.parametrize("decides", get_args(Decides))
def test_nothing_left_of_unlabelled_pictures(decides: Decides) -> None:
    task, queries = problem()
    base = torch.full_like(task.base_unlabelled, 2 * GAMMA)
    task = dataclasses.replace(task, base_unlabelled=base)
    found = BesideBase(SoftKMeans(), 1.0, decides).fit(task).logits(queries)
    plain = torch.cat([queries.base_logits, GAMMA * queries.features @ task.support.mT], -1)
    torch.testing.assert_close(found, plain)


def test_every_method_without_a_place_for_base_classes_has_a_row() -> None:
    for name, spec in methods().items():
        if spec.method.uses_unlabelled and not spec.joint:
            beside = method_spec(f"+{name}")
            assert beside.title == f"Meta-Inc-Baseline + {spec.title}"
            assert (beside.joint, beside.regular) == (True, False)
            assert isinstance(beside.method, BesideBase)
            for part in ("uses_base_features", "uses_pictures", "pieces"):
                assert getattr(beside.method, part) == getattr(spec.method, part)


def test_hyper_parameters_come_back_from_a_row() -> None:
    method = BesideBase(SoftKMeans()).changed(scale=3.0, decides="means", inner={"steps": 7})
    assert method.inner.steps == 7  # type: ignore[attr-defined]
    again = BesideBase(SoftKMeans()).changed(**dataclasses.asdict(method))
    assert again == method
    with pytest.raises(FewgraftError, match="no hyper-parameter 'stepps'"):
        method.changed(inner={"stepps": 1})
