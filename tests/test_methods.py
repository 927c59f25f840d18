"""One contract for every method in the registry."""

import dataclasses
import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pytest
import torch
from torch import Tensor

from fewgraft.base_knowledge import BaseKnowledge, knowledge_of
from fewgraft.errors import FewgraftError
from fewgraft.methods import method_spec, methods
from fewgraft.methods.adaptation import Adaptation
from fewgraft.methods.base import Method, Queries, Task, TaskPictures
from fewgraft.methods.beside_base import BesideBase
from fewgraft.methods.label_propagation import (
    LabelPropagation,
    dense_solution,
    nearest_vertices,
    sparse_solution,
)
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.methods.soft_k_means import MaskedSoftKMeans, SoftKMeans
from fewgraft.methods.trained import TrainedMethod, pieces_before
from fewgraft.methods.transductive import ici
from fewgraft.model import CosineModel, new_model
from fewgraft.network import Network
from fewgraft.prototypes import cosine_logits, directions
from fewgraft.training.recipe import load_recipe

pytestmark = pytest.mark.numerical

EPISODES, WAYS, BASE, QUERIES = 4, 3, 4, 9


@pytest.fixture(autouse=True)
def _a_coarser_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """ICI's hundred problems per round are for its own tests."""
    monkeypatch.setattr(ici, "ALPHAS", 10)


CLASSES, PICTURES = 8, 30  # the first BASE classes are the base classes


@dataclass(frozen=True)
class World:
    """Pictures of coloured noise, and a small network over them."""

    network: Network
    weights: Tensor

    def features(self, pictures: Tensor) -> Tensor:
        with torch.no_grad():
            return self.network.features(pictures)

    def mid(self, pictures: Tensor) -> Tensor:
        """Mid-level directions."""
        if not pictures.numel():
            return torch.empty(*pictures.shape, 64)
        with torch.no_grad():
            seen = self.network.trunk_activations(pictures.flatten()).mean((2, 3))
        return directions(seen).view(*pictures.shape, -1)

    @cached_property
    def knowledge(self) -> BaseKnowledge:
        of_base = torch.arange(BASE * PICTURES).view(BASE, PICTURES)[:, :10]
        return knowledge_of(list(self.features(of_base)), list(self.mid(of_base)))


@cache
def world(plain: bool = False) -> World:
    """`plain`: all pictures are the same."""
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 216, (CLASSES, 1, 1, 1, 3))
    pixels = colours + rng.integers(-60, 61, (CLASSES, PICTURES, 16, 16, 3))
    if plain:
        pixels[:] = 128
    pixels = np.clip(pixels, 0, 255).astype(np.uint8).reshape(-1, 16, 16, 3)
    model: CosineModel = new_model(
        "resnet12-tiny", [str(c) for c in range(BASE)], 16, 3, (0.5,) * 3, (0.25,) * 3
    )
    network = Network(model, pixels)
    of_base = torch.arange(BASE * PICTURES).view(BASE, PICTURES)
    with torch.no_grad():
        return World(network, network.features(of_base).mean(1))


def choose(rng: np.random.Generator, label: int, count: int, first: int = 0) -> list[int]:
    places = first + rng.permutation(PICTURES - first)[:count]
    return [label * PICTURES + int(place) for place in places]


@dataclass(frozen=True)
class Problem:
    task: Task
    queries: Queries
    answers: Tensor  # [E, Q]


def problem(
    shots: tuple[int, ...] = (1, 1, 1),
    unlabelled_novel: int = 4,
    unlabelled_base: int = 3,
    n_base: int = BASE,
    repeated: int = 0,
    plain: bool = False,
) -> Problem:
    """A few episodes; U holds so many pictures of each class, `repeated` of them again."""
    here = world(plain)
    rows: list[list[list[int]]] = [[[] for _ in range(EPISODES)] for _ in range(5)]
    support, labels, unlabelled, query, answers = rows
    for e in range(EPISODES):
        rng = np.random.default_rng(e)
        novel = BASE + rng.permutation(CLASSES - BASE)[:WAYS]
        for way, label in enumerate(novel.tolist()):
            support[e] += choose(rng, label, shots[way])
            labels[e] += [way] * shots[way]
            unlabelled[e] += choose(rng, label, unlabelled_novel, first=5)
            query[e] += choose(rng, label, QUERIES // WAYS, first=20)
            answers[e] += [n_base + way] * (QUERIES // WAYS)
        for label in range(n_base):
            unlabelled[e] += choose(rng, label, unlabelled_base)
            query[e] += choose(rng, label, 2, first=15)
            answers[e] += [label] * 2
        unlabelled[e] += unlabelled[e][:1] * repeated
    s, u, q = (torch.tensor(part, dtype=torch.int64) for part in (support, unlabelled, query))
    u = u.view(EPISODES, -1)
    gamma, weights = 10.0, here.weights[:n_base]
    features = {name: here.features(part) for name, part in (("s", s), ("u", u), ("q", q))}
    task = Task(
        ways=WAYS,
        support=features["s"],
        labels=torch.tensor(labels),
        unlabelled=features["u"],
        base_unlabelled=cosine_logits(features["u"], weights, gamma),
        weights=weights,
        gamma=gamma,
        numbers=torch.arange(EPISODES),
        pictures=TaskPictures(here.network, s, u),
    )
    queries = Queries(features["q"], cosine_logits(features["q"], weights, gamma), q)
    return Problem(task, queries, torch.tensor(answers))


def some(p: Problem, rows: slice) -> tuple[Task, Queries]:
    """A chunk of the episodes."""
    names = ("support", "labels", "unlabelled", "base_unlabelled", "numbers")
    assert p.task.pictures is not None
    assert p.queries.pictures is not None
    pictures = TaskPictures(
        p.task.pictures.network,
        p.task.pictures.support[rows],
        p.task.pictures.unlabelled[rows],
    )
    task = dataclasses.replace(
        p.task, pictures=pictures, **{name: getattr(p.task, name)[rows] for name in names}
    )
    queries = Queries(
        p.queries.features[rows], p.queries.base_logits[rows], p.queries.pictures[rows]
    )
    return task, queries


def given(method: Method, task: Task) -> Task:
    """The task with all that the method needs: untrained pieces, features of base/train."""
    if isinstance(method.learner, TrainedMethod):
        here, rng = world(), torch.Generator().manual_seed(0)
        learnt = pieces_before(
            method.learner, here.weights, task.gamma, 1, rng, lambda: here.network
        )
        task = dataclasses.replace(task, learnt=learnt)
    if method.uses_base_features:
        assert task.pictures is not None
        of_base = torch.arange(BASE * PICTURES).view(BASE, PICTURES)[:, :5]
        pictures = dataclasses.replace(task.pictures, base=of_base)
        features = world().features(of_base)
        task = dataclasses.replace(task, base_features=features, pictures=pictures)
    if method.uses_knowledge:
        task = dataclasses.replace(task, knowledge=world().knowledge)
    if method.uses_mid_features:
        assert task.pictures is not None
        mid = (world().mid(task.pictures.support), world().mid(task.pictures.unlabelled))
        task = dataclasses.replace(task, mid=mid)
    return task


def answer(method: Method, p: Problem) -> Tensor:
    return method.fit(given(method, p.task)).logits(p.queries)


def quick(name: str) -> Method:
    """The method as registered, cut to the small world: few steps, few neighbours."""
    method = method_spec(name).method
    if isinstance(method, LabelPropagation):
        return method.changed(neighbours=3)
    if isinstance(method, BesideBase):
        return dataclasses.replace(method, inner=quick(name.removeprefix("+")))
    if method.moves_network and name not in FEWER:
        return method.changed(steps=3, batch=8)
    return method.changed(**FEWER.get(name, {}))


# Steps that are enough in the small world.
FEWER: dict[str, dict[str, object]] = {
    "alpha-tim": {"steps": 50, "lr": 1e-3},
    "ici": {"per_round": 50},
    "lcwof-block": {"steps": 3, "calibration_steps": 3},
    "tim-gd": {"steps": 50, "lr": 1e-3},
    "transmatch": {"steps": 3, "batch": 8},
    "xtarnet-block": {},
}
# What is beside base classes is the same around every method: some stand for all.
BESIDE = ("+bavardage", "+completion", "+laplacian-shot", "+soft-k-means", "+transmatch")
SOME = [n for n, s in methods().items() if not isinstance(s.method, BesideBase) or n in BESIDE]
CASES = [
    pytest.param(name, n_base, id=f"{name}-{'joint' if n_base else 'regular'}")
    for name in SOME
    for n_base, fits in ((BASE, method_spec(name).joint), (0, method_spec(name).regular))
    if fits
]
every_method = pytest.mark.parametrize(("name", "n_base"), CASES)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@every_method
def test_the_same_task_gives_the_same_logits(name: str, n_base: int) -> None:
    p = problem(n_base=n_base)
    first, second = answer(quick(name), p), answer(quick(name), p)
    assert first.shape == (EPISODES, p.answers.shape[1], n_base + WAYS)
    assert torch.equal(first, second)
    assert not first.requires_grad


@every_method
def test_it_learns_something(name: str, n_base: int) -> None:
    """Colours are easy: far above chance on novel queries among novel classes."""
    p = problem(n_base=n_base, shots=(3, 3, 3))
    logits = answer(quick(name), p)
    is_novel = p.answers >= n_base
    right = logits[..., n_base:].argmax(-1) + n_base == p.answers
    assert right[is_novel].double().mean() > 0.55


@every_method
def test_permuted_labels_permute_columns(name: str, n_base: int) -> None:
    p = problem(n_base=n_base, shots=(1, 2, 3))
    order = torch.tensor([2, 0, 1])
    renamed = dataclasses.replace(p, task=dataclasses.replace(p.task, labels=order[p.task.labels]))
    first, second = answer(quick(name), p), answer(quick(name), renamed)
    close(second[..., n_base:][..., order], first[..., n_base:])
    close(second[..., :n_base], first[..., :n_base])


@every_method
@pytest.mark.parametrize("size", [1, 3])
def test_chunks_do_not_matter(name: str, n_base: int, size: int) -> None:
    p = problem(n_base=n_base)
    parts = [some(p, slice(start, start + size)) for start in range(0, EPISODES, size)]
    method = quick(name)
    pieces = [method.fit(given(method, task)).logits(queries) for task, queries in parts]
    close(torch.cat(pieces), answer(method, p))


@every_method
def test_a_query_is_answered_whoever_else_asks(name: str, n_base: int) -> None:
    p = problem(n_base=n_base)
    solution = quick(name).fit(given(quick(name), p.task))
    few = Queries(*(part[:, 2:5] for part in (p.queries.features, p.queries.base_logits)))
    assert p.queries.pictures is not None
    few = dataclasses.replace(few, pictures=p.queries.pictures[:, 2:5])
    close(solution.logits(few), solution.logits(p.queries)[:, 2:5])


@every_method
def test_an_empty_unlabelled_set_gives_the_inductive_answer(name: str, n_base: int) -> None:
    p = problem(n_base=n_base, unlabelled_novel=0, unlabelled_base=0)
    assert p.task.unlabelled.shape[1] == 0
    method = quick(name)
    if method.uses_unlabelled:
        close(answer(method, p), answer(NearestPrototype(), p))
    else:
        close(answer(method, p), answer(method, problem(n_base=n_base)))


@every_method
@pytest.mark.parametrize("shots", [(1, 1, 1), (1, 4, 2), (5, 5, 5)])
def test_equal_and_unequal_shots(name: str, n_base: int, shots: tuple[int, ...]) -> None:
    assert torch.isfinite(answer(quick(name), problem(shots, n_base=n_base))).all()


@every_method
@pytest.mark.parametrize(("novel", "base"), [(4, 0), (0, 4), (1, 0)])
def test_unlabelled_sets_of_one_kind(name: str, n_base: int, novel: int, base: int) -> None:
    p = problem(unlabelled_novel=novel, unlabelled_base=base, n_base=n_base)
    logits = answer(quick(name), p)
    assert torch.isfinite(logits).all()


@every_method
def test_an_unlabelled_set_of_one_picture(name: str, n_base: int) -> None:
    p = problem(n_base=n_base)
    assert p.task.pictures is not None
    one = dataclasses.replace(
        p.task,
        unlabelled=p.task.unlabelled[:, :1],
        base_unlabelled=p.task.base_unlabelled[:, :1],
        pictures=dataclasses.replace(p.task.pictures, unlabelled=p.task.pictures.unlabelled[:, :1]),
    )
    method = quick(name)
    assert torch.isfinite(method.fit(given(method, one)).logits(p.queries)).all()


@every_method
def test_a_repeated_picture_does_no_harm(name: str, n_base: int) -> None:
    once, twice = (problem(n_base=n_base, shots=(2, 2, 2), repeated=r) for r in (0, 1))
    right = [
        (answer(quick(name), p).argmax(-1) == p.answers).double().mean() for p in (once, twice)
    ]
    assert right[1] >= right[0] - 0.1


@every_method
def test_inputs_are_left_alone(name: str, n_base: int) -> None:
    p = problem(n_base=n_base)
    network = world().network
    tensors = [v for o in (p.task, p.task.pictures, p.queries) for v in vars(o).values()]
    tensors = [v for v in tensors if isinstance(v, Tensor)] + list(network.start.values())
    before = [tensor.clone() for tensor in tensors]
    answer(quick(name), p)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


@every_method
def test_degenerate_features(name: str, n_base: int) -> None:
    p = problem(n_base=n_base, plain=True)
    assert torch.isfinite(answer(quick(name), p)).all(), "all features equal"
    if method_spec(name).method.moves_network:
        return
    empty = dataclasses.replace(
        p,
        task=dataclasses.replace(
            p.task,
            support=torch.zeros_like(p.task.support),
            unlabelled=torch.zeros_like(p.task.unlabelled),
            base_unlabelled=torch.zeros_like(p.task.base_unlabelled),
        ),
        queries=dataclasses.replace(
            p.queries,
            features=torch.zeros_like(p.queries.features),
            base_logits=torch.zeros_like(p.queries.base_logits),
        ),
    )
    assert torch.isfinite(answer(quick(name), empty)).all(), "all features zero"


# --- the registry ---


def test_the_registry_names_the_papers_methods() -> None:
    assert {
        "nearest-prototype",
        "meta-inc-baseline",
        "+pr",
        "+pr+bias",
        "+graph",
        "+fixmatch",
        "proposed-without-adaptation",
        "proposed",
        "distilled-adaptation",
        "soft-k-means",
        "masked-soft-k-means",
        "lwof",
    } <= set(methods())
    with pytest.raises(FewgraftError, match="Did you mean 'proposed'"):
        method_spec("proposd")
    with pytest.raises(FewgraftError, match="Did you mean 'steps'"):
        method_spec("+pr").method.changed(step=3)
    with pytest.raises(FewgraftError, match="'steps' is beyond ±1,000,000"):
        method_spec("+pr").method.changed(steps=10**5000)


@pytest.mark.parametrize("name", [name for name, spec in methods().items() if spec.method.pieces])
def test_pieces_have_the_methods_name_and_are_asked_for(name: str) -> None:
    method = method_spec(name).method
    assert isinstance(method.learner, TrainedMethod)
    assert method.pieces == name.removeprefix("+" if isinstance(method, BesideBase) else "")
    with pytest.raises(FewgraftError, match="needs what it has learnt"):
        method.fit(problem().task)


@pytest.mark.parametrize("name", list(methods()))
def test_what_may_be_searched_exists(name: str) -> None:
    method = method_spec(name).method
    for key, values in method.search.items():
        for value in values:
            assert getattr(method.changed(**{key: value}), key) == value


@pytest.mark.parametrize("name", [name for name in SOME if method_spec(name).method.search])
def test_a_search_chooses_how_strong_and_not_whether(name: str) -> None:
    """Neither a switch nor a 0, and no value at which the method answers as if there were no U."""
    spec, p = (
        method_spec(name),
        problem(shots=(1, 2, 2), n_base=BASE if method_spec(name).joint else 0),
    )
    inductive = answer(NearestPrototype(), p)
    for key, values in spec.method.search.items():
        for value in values:
            assert not isinstance(value, bool), f"{key} is a switch"
            assert value != 0, f"{key} = 0 turns a part of it off"
            changed = quick(name).changed(**{key: value, **FEWER.get(name, {})})
            assert not torch.equal(answer(changed, p), inductive)


@pytest.mark.parametrize("name", [name for name, spec in methods().items() if spec.method.search])
def test_a_search_by_coordinates_begins_inside(name: str) -> None:
    method = method_spec(name).method
    if method.search_by == "coordinates":
        assert all(getattr(method, key) in values for key, values in method.search.items())


@pytest.mark.parametrize("recipe", ["icons", "cifar-fs"])
def test_recipes_leave_no_part_of_a_published_method_off(recipe: str) -> None:
    """Whatever a recipe sets is one of the values that its method searches, and none is off."""
    for chosen in load_recipe(recipe).evaluation:
        search = method_spec(chosen.method).method.search
        for key in chosen.hyper.keys() & search.keys():
            assert chosen.hyper[key] in search[key], f"{chosen.method}: {key}"
        assert chosen.hyper.get("shift", True), chosen.method


# --- single methods ---


def test_propagation_solves_the_same_problem_sparse_and_dense() -> None:
    rng = torch.Generator().manual_seed(0)
    vertices = torch.nn.functional.normalize(
        torch.randn(2, 40, 8, generator=rng, dtype=torch.float64), dim=-1
    )
    places, edges = nearest_vertices(vertices, vertices, 5, 3.0, skip=True)
    labels = torch.eye(40, 6, dtype=torch.float64)
    dense, sparse = (
        solve(places, edges, labels, 0.99) for solve in (dense_solution, sparse_solution)
    )
    torch.testing.assert_close(dense, sparse, rtol=1e-4, atol=1e-6)
    for e in range(2):  # the definition, with an inverse
        a = torch.zeros(40, 40, dtype=torch.float64)
        for i in range(40):
            for j in range(40):
                others = sorted(
                    (k for k in range(40) if k != i),
                    key=lambda k: -float(vertices[e, i] @ vertices[e, k]),
                )
                if j in others[:5]:
                    a[i, j] = max(0.0, float(vertices[e, i] @ vertices[e, j])) ** 3
        a = (a + a.T) / 2
        scale = a.sum(1).pow(-0.5)
        f = torch.linalg.inv(torch.eye(40) - 0.99 * scale[:, None] * a * scale) @ labels
        torch.testing.assert_close(dense[e], f / f.sum(1, keepdim=True), rtol=1e-6, atol=1e-9)


def test_a_large_unlabelled_set_is_solved_sparsely_to_the_same_answer() -> None:
    p = problem(shots=(2, 2, 2))
    close(answer(LabelPropagation(dense_up_to=0), p), answer(LabelPropagation(), p))


def test_soft_k_means_against_a_plain_loop() -> None:
    p = problem(n_base=0, shots=(2, 1, 1))
    got = SoftKMeans(steps=2, scale=3.0).fit(p.task).novel
    for e in range(EPISODES):
        s = [row / row.norm() for row in p.task.support[e]]
        u = [row / row.norm() for row in p.task.unlabelled[e]]
        labels = p.task.labels[e].tolist()
        means = []
        for way in range(WAYS):
            mean = torch.stack([x for x, y in zip(s, labels, strict=True) if y == way]).mean(0)
            means.append(mean / mean.norm())
        for _ in range(2):
            sums = [sum(x for x, y in zip(s, labels, strict=True) if y == way) for way in range(3)]
            for x in u:
                closeness = torch.stack([(-3.0 * (x - m).square().sum()).exp() for m in means])
                for way in range(WAYS):
                    sums[way] = sums[way] + closeness[way] / closeness.sum() * x
            means = [total / total.norm() for total in sums]
        torch.testing.assert_close(got[e], torch.stack(means), rtol=1e-4, atol=1e-4)


def test_the_mask_keeps_far_pictures_out() -> None:
    distances = torch.tensor([[[0.2, 1.8], [0.3, 1.9], [1.9, 0.4]]])
    mask = MaskedSoftKMeans(threshold=1.0, slope=20.0).mask(distances)
    assert (mask[0, :2, 0] > 0.99).all()
    assert mask[0, 2, 0] < 0.01
    assert mask[0, 2, 1] > 0.99


def test_methods_that_move_the_network_say_what_they_need() -> None:
    p = problem()
    blind = dataclasses.replace(p.task, pictures=None)
    for name in (*ADAPTATIONS, "+fixmatch"):
        with pytest.raises(FewgraftError, match="needs the model"):
            method_spec(name).method.fit(blind)
    solution = quick("proposed").fit(p.task)
    with pytest.raises(FewgraftError, match="needs pictures"):
        solution.logits(dataclasses.replace(p.queries, pictures=None))


ADAPTATIONS = ("proposed", "distilled-adaptation")


@pytest.mark.parametrize("name", ADAPTATIONS)
def test_adaptation_without_a_rate_is_refinement(name: str) -> None:
    p = problem(shots=(2, 2, 2))
    still = quick(name).changed(lr=0.0, momentum=0.0)
    close(answer(still, p), answer(method_spec("proposed-without-adaptation").method, p))
    assert not torch.allclose(answer(quick(name).changed(lr=0.1), p), answer(still, p))


@pytest.mark.parametrize("weight", ["w_cls", "w_ctr", "w_dst"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_the_proposed_method_has_all_three_losses(weight: str, value: float) -> None:
    with pytest.raises(FewgraftError, match=f"'{weight}' must be above 0"):
        Adaptation(**{weight: value})  # type: ignore[arg-type]
    with pytest.raises(FewgraftError, match=f"'{weight}' must be above 0"):
        method_spec("proposed").method.changed(**{weight: value})


def test_the_proposed_loss_against_the_papers_sums() -> None:
    """One step of descent on Eqs. 5–7, written out picture by picture."""
    p = problem(shots=(2, 2, 2))
    assert p.task.pictures is not None
    network, labels = p.task.pictures.network, p.task.labels[0]
    method = Adaptation(w_cls=0.3, w_ctr=0.7, w_dst=1.1, tau_ctr=0.4, tau_dst=1.7, batch=5)
    places, gamma = torch.tensor([3, 0, 8]), p.task.gamma
    novel = torch.randn(WAYS, p.task.support.shape[-1], generator=torch.Generator().manual_seed(0))
    adapted = method._start(p.task, novel)
    with torch.no_grad():  # somewhere else than at the start
        adapted.base.mul_(torch.linspace(0.5, 2.0, adapted.base.numel()).view_as(adapted.base))
    found = method._loss(p.task, 0, adapted, method._teacher(p.task, 0), places, 0)
    chosen = p.task.pictures.unlabelled[0][places]
    views = [
        network.head_features(network.trunk_activations(chosen, network.weak_view(v))).detach()
        for v in range(2)
    ]

    def cos(a: Tensor, b: Tensor) -> float:
        return float(a @ b / (a.norm() * b.norm()))

    all_views = [*views[0], *views[1]]
    contrast = 0.0
    for i, anchor in enumerate(all_views):
        others = [k for k in range(6) if k != i]
        total = sum(math.exp(cos(anchor, all_views[k]) / 0.4) for k in others)
        contrast -= math.log(math.exp(cos(anchor, all_views[(i + 3) % 6]) / 0.4) / total) / 6

    def softened(feature: Tensor, weights: Tensor) -> list[float]:
        powers = [math.exp(gamma * cos(feature, w) / 1.7) for w in weights]
        return [power / sum(powers) for power in powers]

    distilled = 0.0
    for feature in all_views:  # the network has not moved yet, W_b has
        was, now = softened(feature, p.task.weights), softened(feature, adapted.base.detach())
        distilled -= sum(z * math.log(y) for z, y in zip(was, now, strict=True)) / 6
    support = network.head_features(network.trunk_activations(p.task.pictures.support[0])).detach()
    weights, classified = torch.cat([adapted.base.detach(), novel]), 0.0
    for feature, label in zip(support, labels.tolist(), strict=True):
        powers = [math.exp(gamma * cos(feature, w)) for w in weights]
        classified -= math.log(powers[BASE + label] / sum(powers)) / len(labels)
    expected = 0.3 * classified + 0.7 * contrast + 1.1 * distilled
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_the_proposed_method_moves_the_last_block_and_the_base_weights() -> None:
    p = problem(shots=(2, 2, 2))
    method = quick("proposed").changed(lr=0.1)
    assert isinstance(method, Adaptation)
    start = method._start(p.task, torch.ones(WAYS, p.task.support.shape[-1]))
    assert all(tensor.requires_grad for tensor in (*start.parameters.values(), start.base))
    assert not start.novel.requires_grad
    [found, *_] = method.fit(p.task).episodes
    assert not torch.allclose(found.base, p.task.weights)
    logits = answer(method, p)
    assert not torch.allclose(logits[..., :BASE], p.queries.base_logits), "what moved answers"


def test_adaptation_all_the_way_back_is_refinement() -> None:
    p = problem(shots=(2, 2, 2))
    plain = answer(method_spec("proposed-without-adaptation").method, p)
    moved = quick("distilled-adaptation").changed(lr=0.1)
    close(answer(moved.changed(start_share=1.0), p), plain)
    half, whole = (answer(moved.changed(start_share=share), p) for share in (0.5, 0.0))
    assert 0 < (half - plain).norm() < (whole - plain).norm()


def test_kept_base_classes_are_scored_as_if_nothing_had_moved() -> None:
    p = problem(shots=(2, 2, 2))
    moved = quick("distilled-adaptation").changed(lr=0.1)
    logits = answer(moved.changed(base="kept"), p)
    n_base = p.queries.base_logits.shape[-1]
    assert torch.equal(logits[..., :n_base], p.queries.base_logits)
    assert not torch.allclose(answer(moved, p)[..., :n_base], p.queries.base_logits)
    still = quick("distilled-adaptation").changed(lr=0.0, momentum=0.0, base="kept")
    close(answer(still, p), answer(method_spec("proposed-without-adaptation").method, p))


def test_a_teacher_that_holds_novel_classes_back_lowers_their_scores() -> None:
    p = problem(shots=(2, 2, 2))
    moved = quick("distilled-adaptation").changed(lr=0.02, base="kept")
    n_base = p.queries.base_logits.shape[-1]
    free, held = (answer(moved.changed(teacher_bias=bias), p) for bias in (0.0, -3.0))
    assert held[..., n_base:].mean() < free[..., n_base:].mean()
