"""What must hold for every transductive and semi-supervised method, and single parts of them."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA, FastICA
from sklearn.linear_model import enet_path
from torch import Tensor
from torch.nn.functional import normalize

from fewgraft.methods.base import Method, Queries, Task
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.methods.transductive.bd_cspn_code import RectifiedByClass
from fewgraft.methods.transductive.epnet import EmbeddingPropagation, Graph
from fewgraft.methods.transductive.ici import InstanceCredibility, credibility, huber, principal
from fewgraft.methods.transductive.k_means import lloyd
from fewgraft.methods.transductive.laplacian_shot import LaplacianShot
from fewgraft.methods.transductive.nearness import copies, not_asked, squared_distances
from fewgraft.methods.transductive.subspace import Subspace, leading_directions
from fewgraft.methods.transductive.tafssl_bkm import ClusterNeighbours
from fewgraft.methods.transductive.tafssl_msp import SurestPrototypes
from fewgraft.methods.transductive.team import AdaptiveMetric
from fewgraft.methods.transductive.tpn import (
    TransductivePropagation,
    bandwidths,
    edges,
    mean_distance,
    propagate,
)
from fewgraft.prototypes import directions, members_of

pytestmark = pytest.mark.numerical

METHODS: dict[str, Method] = {
    "tafssl-msp": SurestPrototypes(),
    "tafssl-msp-apart": SurestPrototypes(centring="apart"),
    "tafssl-bkm": ClusterNeighbours(),
    "tafssl-bkm-hard": ClusterNeighbours(centring="apart", clusters="hard"),
    "ici": InstanceCredibility(ties="length"),
    "epnet": EmbeddingPropagation(),
    "epnet-together": EmbeddingPropagation(together=True),
    "tpn": TransductivePropagation(),
    "tpn-together": TransductivePropagation(together=True),
    "laplacian-shot": LaplacianShot(),
    "laplacian-shot-together": LaplacianShot(together=True),
    "bd-cspn-code": RectifiedByClass(),
    "team": AdaptiveMetric(),
}
every_method = pytest.mark.parametrize("name", list(METHODS))
alone = pytest.mark.parametrize("name", [name for name in METHODS if "together" not in name])


def problem(
    shots: tuple[int, ...] = (2, 1, 3),
    unlabelled: tuple[int, ...] = (9, 4, 6),
    width: int = 12,
    episodes: int = 3,
    seed: int = 0,
) -> tuple[Task, Queries]:
    """Classes of non-negative features, some rarer than others."""
    rng, ways = torch.Generator().manual_seed(seed), len(shots)
    centres = torch.rand(episodes, ways, width, generator=rng)

    def drawn(labels: Tensor) -> Tensor:
        noise = torch.rand(episodes, len(labels), width, generator=rng)
        return directions(centres[:, labels] + 0.7 * noise)

    classes = torch.arange(ways)
    labels, query = classes.repeat_interleave(torch.tensor(shots)), classes.repeat(4)
    pile = drawn(classes.repeat_interleave(torch.tensor(unlabelled)))
    support, queries = drawn(labels), drawn(query)
    task = Task(
        ways=ways,
        support=support,
        labels=labels.expand(episodes, -1),
        unlabelled=pile,
        base_unlabelled=pile[..., :0],
        weights=support[0, :0],
        gamma=10.0,
        numbers=torch.arange(episodes),
    )
    return task, Queries(queries, queries[..., :0])


def answer(name: str, task: Task, queries: Queries) -> Tensor:
    return METHODS[name].fit(task).logits(queries).softmax(-1)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@every_method
def test_the_same_input_gives_the_same_output(name: str) -> None:
    assert torch.equal(answer(name, *problem()), answer(name, *problem()))


@every_method
def test_permuted_class_ids_permute_columns(name: str) -> None:
    task, queries = problem()
    order = torch.tensor([2, 0, 1])
    renamed = dataclasses.replace(task, labels=order[task.labels])
    close(answer(name, renamed, queries)[..., order], answer(name, task, queries))


@every_method
def test_the_order_of_the_unlabelled_set_does_not_matter(name: str) -> None:
    task, queries = problem()
    order = torch.randperm(task.unlabelled.shape[1], generator=torch.Generator().manual_seed(1))
    shuffled = dataclasses.replace(task, unlabelled=task.unlabelled[:, order])
    close(answer(name, shuffled, queries), answer(name, task, queries))


@every_method
def test_episodes_one_by_one(name: str) -> None:
    task, queries = problem()
    whole = answer(name, task, queries)
    for e in range(3):
        one = dataclasses.replace(
            task,
            **{
                key: getattr(task, key)[e : e + 1]
                for key in ("support", "labels", "unlabelled", "base_unlabelled", "numbers")
            },
        )
        asked = Queries(queries.features[e : e + 1], queries.base_logits[e : e + 1])
        close(answer(name, one, asked)[0], whole[e])


@alone
def test_an_empty_unlabelled_set_gives_the_inductive_answer(name: str) -> None:
    task, queries = problem(unlabelled=(0, 0, 0))
    expected = NearestPrototype().fit(task).logits(queries)
    close(METHODS[name].fit(task).logits(queries), expected)


@alone
def test_queries_are_answered_alone(name: str) -> None:
    task, queries = problem()
    few = Queries(queries.features[:, 2:5], queries.base_logits[:, 2:5])
    close(answer(name, task, few), answer(name, task, queries)[:, 2:5])


@pytest.mark.parametrize("name", [name for name in METHODS if "together" in name])
def test_together_a_picture_of_u_that_is_a_query_counts_once(name: str) -> None:
    task, queries = problem()
    twice = dataclasses.replace(task, unlabelled=queries.features[:, torch.randperm(12)])
    none = dataclasses.replace(task, unlabelled=task.unlabelled[:, :0])
    close(answer(name, twice, queries), answer(name, none, queries))
    some = torch.cat([task.unlabelled, queries.features[:, :5]], 1)
    mixed = dataclasses.replace(task, unlabelled=some)
    close(answer(name, mixed, queries), answer(name, task, queries))


@every_method
@pytest.mark.parametrize(
    "unlabelled", [(1, 0, 0), (0, 2, 0), (0, 0, 30)], ids=["one", "two", "one class"]
)
@pytest.mark.parametrize("shots", [(1, 1, 1), (4, 1, 2)])
def test_small_and_one_sided_unlabelled_sets(
    name: str, shots: tuple[int, ...], unlabelled: tuple[int, ...]
) -> None:
    task, queries = problem(shots, unlabelled)
    assert torch.isfinite(METHODS[name].fit(task).logits(queries)).all()


@every_method
@pytest.mark.parametrize("value", [0.0, 0.3])
def test_constant_features(name: str, value: float) -> None:
    task, queries = problem()
    flat = dataclasses.replace(
        task,
        support=torch.full_like(task.support, value),
        unlabelled=torch.full_like(task.unlabelled, value),
    )
    assert torch.isfinite(METHODS[name].fit(flat).logits(queries)).all()
    same = Queries(torch.full_like(queries.features, value), queries.base_logits)
    assert torch.isfinite(METHODS[name].fit(flat).logits(same)).all()


@every_method
def test_duplicates(name: str) -> None:
    task, queries = problem()
    pile = torch.cat([task.unlabelled[:, :1].expand(-1, 8, -1), task.support, task.unlabelled], 1)
    double = dataclasses.replace(task, unlabelled=pile)
    assert torch.isfinite(METHODS[name].fit(double).logits(queries)).all()


@every_method
@pytest.mark.parametrize(("ways", "width"), [(2, 4), (7, 40)])
def test_other_sizes(name: str, ways: int, width: int) -> None:
    task, queries = problem((2,) * ways, (6,) * ways, width)
    right = answer(name, task, queries).argmax(-1) == torch.arange(ways).repeat(4)
    assert right.double().mean() > 0.6


# --- parts ---


def made(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_copies_are_found_once() -> None:
    others = made(0, 2, 6, 4)
    others[0, 3] = others[0, 1]
    pictures = torch.stack([others[:, 1], made(1, 2, 4), others[:, 5]], 1)
    found = copies(pictures, others)
    assert found.sum(-1).tolist() == [[1, 0, 1], [1, 0, 1]]
    assert found[0, 2, 5]
    [(episodes, rest)] = not_asked(others[1:], pictures[1:])
    assert episodes.tolist() == [0]
    assert torch.equal(rest[0], others[1, [0, 2, 3, 4]])
    counts = {rest.shape[1]: episodes.tolist() for episodes, rest in not_asked(others, pictures)}
    assert counts == {3: [0], 4: [1]}


def test_the_subspace_is_that_of_fast_ica_up_to_a_rotation() -> None:
    features = made(0, 1, 30, 20)
    ours = leading_directions(features, 6, "ica")[0]
    sources = FastICA(6, random_state=0, max_iter=1000, tol=1e-6).fit_transform(
        features[0].T.numpy()
    )
    theirs = torch.linalg.qr(torch.from_numpy(sources)).Q
    torch.testing.assert_close(ours @ ours.T, theirs @ theirs.T, rtol=0, atol=1e-6)


def test_a_subspace_has_no_directions_that_the_pictures_do_not_have() -> None:
    features = made(0, 1, 4, 9)
    basis = leading_directions(features, 8, "ica")[0]
    assert torch.linalg.matrix_rank(basis) == 4
    assert (basis.norm(dim=0) > 0).sum() == 4


def test_no_round_of_msp_is_the_nearest_prototype_of_the_subspace() -> None:
    task, queries = problem()
    sure = SurestPrototypes(threshold=1.0).fit(task).logits(queries)
    none = SurestPrototypes(rounds=0).fit(task).logits(queries)
    close(sure, none)
    assert not torch.allclose(SurestPrototypes().fit(task).logits(queries), none, atol=1e-3)


def test_lloyd_against_scikit_learn_from_the_same_centres() -> None:
    points = normalize(made(0, 4, 60, 5) - 0.5, dim=-1)
    first = points[:, :4]
    found = lloyd(points, first)
    for e in range(4):
        theirs = KMeans(4, init=first[e].numpy(), n_init=1, tol=0).fit(points[e].numpy())
        np.testing.assert_allclose(found[e], theirs.cluster_centers_, atol=1e-9)


def path_problem() -> tuple[Tensor, Tensor, Tensor]:
    pictures = directions(made(0, 2, 40, 12))
    labels = members_of((made(1, 2, 40) * 3).long(), 3, torch.float64)
    return pictures, principal(pictures, 5), labels


def test_the_components_of_ici_are_those_of_scikit_learn() -> None:
    pictures, components, _ = path_problem()
    for e in range(2):
        scores = torch.from_numpy(PCA(5).fit_transform(pictures[e].numpy()))
        theirs = torch.linalg.qr(scores).Q
        torch.testing.assert_close(components[e] @ components[e].T, theirs @ theirs.T)


def test_offsets_of_ici_against_the_group_lasso_of_scikit_learn() -> None:
    _, components, labels = path_problem()
    since, _ = credibility(components, labels)
    for e in range(2):
        hat = torch.eye(40, dtype=torch.float64) - components[e] @ components[e].T
        _, coefficients, _ = enet_path(
            hat.numpy(),
            (hat @ labels[e]).numpy(),
            l1_ratio=1.0,
            alphas=100,
            tol=1e-9,
            max_iter=100_000,
        )
        zero = (np.abs(coefficients).sum(0) < 1e-6)[:, ::-1]  # [n, α], the smallest first
        assert (np.abs(zero.argmax(1) - since[e].numpy()) <= 1).all()
        assert (zero.argmax(1) == since[e].numpy()).mean() > 0.9


def test_labels_that_the_components_explain_need_no_offset() -> None:
    labels = members_of(torch.arange(12).remainder(3)[None], 3, torch.float64).transpose(1, 2)
    components = directions(labels)
    _, lengths = huber(components, labels, torch.tensor([0.1]).double(), labels.new_zeros(1, 3, 3))
    assert lengths.max() < 1e-6


def test_ici_takes_all_of_u() -> None:
    task, queries = problem()
    by_order = InstanceCredibility(per_round=1000).fit(task).logits(queries)
    by_length = InstanceCredibility(per_round=1000, ties="length").fit(task).logits(queries)
    close(by_order, by_length)  # all at once: the order does not matter


def test_a_graph_does_not_see_a_shift_and_its_rows_grow() -> None:
    vertices = made(0, 2, 15, 6)
    graph, moved = Graph.of(vertices), Graph.of(vertices + 3.0)
    torch.testing.assert_close(graph.edges, moved.edges)
    assert (graph.spread(torch.ones(2, 15, 1).double(), 0.5) >= 1).all()
    torch.testing.assert_close(graph.spread(vertices, 0.0), vertices)
    scale = graph.degrees.rsqrt()
    spread = scale[:, :, None] * graph.edges * scale[:, None]
    series = sum(torch.linalg.matrix_power(0.5 * spread, k) for k in range(60)) @ vertices
    torch.testing.assert_close(graph.spread(vertices, 0.5), series)


def test_epnet_alone_is_the_joint_answer_where_u_is_the_query_set() -> None:
    task, queries = problem()
    transductive = dataclasses.replace(task, unlabelled=queries.features.flip(1))
    plain = EmbeddingPropagation(pseudo_labels=False)
    close(
        plain.fit(transductive).logits(queries),
        plain.changed(together=True).fit(transductive).logits(queries),
    )


def test_labels_propagate_within_blobs_and_as_a_power_series() -> None:
    vertices = torch.cat([made(0, 1, 10, 4), 50 + made(1, 1, 10, 4)], 1)
    weights = edges(vertices, 5)
    labels = torch.zeros(1, 20, 2, dtype=torch.float64)
    labels[0, 0, 0] = labels[0, 10, 1] = 1.0
    found = propagate(weights, labels, 0.9)
    assert found[0].argmax(-1).tolist() == [0] * 10 + [1] * 10
    scale = weights.sum(-1).rsqrt()
    spread = scale[:, :, None] * weights * scale[:, None]
    assert torch.linalg.eigvalsh(spread).abs().max() <= 1 + 1e-9
    series = sum(torch.linalg.matrix_power(0.9 * spread, k) for k in range(300)) @ labels
    torch.testing.assert_close(found, series)


def test_bandwidths_of_a_network() -> None:
    vertices = made(0, 2, 7, 4)
    layers = [(made(1, 8, 4), made(2, 8)), (made(3, 1, 8), made(4, 1))]
    found = bandwidths(vertices, layers, mean_distance(vertices))
    hidden = (vertices[1, 3] @ layers[0][0].T + layers[0][1]).clamp(min=0)
    expected = 0.05 + (1 + (hidden @ layers[1][0][0] + layers[1][1]).exp()).log()
    differences = [(a - b).square().mean() for a in vertices[1] for b in vertices[1]]
    unit = torch.stack(differences).mean().sqrt()
    torch.testing.assert_close(found[1, 3], expected * unit)
    torch.testing.assert_close(mean_distance(vertices)[1, 0, 0], unit)


def test_laplacian_shot_without_strength_is_the_nearest_prototype() -> None:
    task, queries = problem()
    found = LaplacianShot(strength=0.0, rectified=False).fit(task).logits(queries)
    mean = torch.cat([task.support, task.unlabelled], 1).double().mean(1, keepdim=True)
    support = directions(task.support.double() - mean)
    labels = members_of(task.labels, task.ways, support.dtype)
    means = labels.transpose(1, 2) @ support / labels.sum(1)[..., None]
    plain = -squared_distances(directions(queries.features.double() - mean), means)
    close(found, plain.log_softmax(-1).float())


def test_neighbours_agree_where_they_count_much() -> None:
    task, queries = problem()
    strong = LaplacianShot(strength=50.0, neighbours=18, together=True)
    none = dataclasses.replace(task, unlabelled=task.unlabelled[:, :0])
    answers = strong.fit(none).logits(queries).argmax(-1)
    assert (answers == answers[:, :1]).all()


def test_rectification_with_copies_of_the_support_turns_no_prototype() -> None:
    task, _ = problem(shots=(1, 1, 1))
    same = dataclasses.replace(task, unlabelled=task.support)
    mean = task.support.double().mean(1, keepdim=True)
    found = RectifiedByClass().fit(same).novel
    torch.testing.assert_close(directions(found), directions(task.support.double() - mean))


def test_positions_of_shots_are_centred_apart_where_shots_are_equal() -> None:
    task, _ = problem(shots=(2, 2, 2))
    space = Subspace.of(task, 4, "ica", "apart")
    support = task.support.double()
    expected = support.view(3, 3, 2, -1) - support.view(3, 3, 2, -1).mean(1, keepdim=True)
    expected = directions(directions(expected.view_as(support)) @ space.basis)
    torch.testing.assert_close(space.support, expected)
    uneven, _ = problem(shots=(2, 1, 3))
    space = Subspace.of(uneven, 4, "ica", "apart")
    support = uneven.support.double()
    expected = directions(directions(support - support.mean(1, keepdim=True)) @ space.basis)
    torch.testing.assert_close(space.support, expected)
