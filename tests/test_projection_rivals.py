"""TapNet and XtarNet: the projection, the golden vectors and the limiting cases."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Queries, Task
from fewgraft.methods.incremental.projection import Projection
from fewgraft.methods.incremental.tapnet import (
    ProjectedCentres,
    References,
    TapNet,
    closeness,
    matched,
    told_apart,
)
from fewgraft.methods.incremental.xtarnet import (
    MergedCentres,
    TaskNets,
    XtarNet,
    conditioned,
    correlation,
    merging,
    pushed_away,
)
from fewgraft.methods.trained import TrainedMethod
from fewgraft.prototypes import direction_logits, directions, prototypes

pytestmark = pytest.mark.numerical
RIVALS = Path(__file__).parent / "data" / "rivals"
N, D = 5, 16
both_shots = pytest.mark.parametrize("shots", [1, 5])


def noise(*shape: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=rng, dtype=torch.float64)


def stored(name: str, shots: int) -> dict[str, Tensor]:
    """Golden tensors of one number of shots, by name."""
    arrays = np.load(RIVALS / f"{name}.npz")
    prefix = f"s{shots}_"
    return {
        key.removeprefix(prefix): torch.from_numpy(arrays[key])
        for key in arrays
        if key.startswith(prefix)
    }


def matrix(projection: Projection) -> Tensor:
    """P itself [E, d, d]."""
    return projection(torch.eye(D, dtype=torch.float64).expand(len(projection.rows), D, D))


# --- the projection ---


def test_a_projection_takes_away_the_error_and_nothing_else() -> None:
    error = noise(3, N, D)
    p = matrix(Projection.without(error))
    torch.testing.assert_close(error @ p, torch.zeros_like(error), rtol=0, atol=1e-12)
    torch.testing.assert_close(p @ p, p)
    torch.testing.assert_close(p, p.transpose(1, 2))
    torch.testing.assert_close(p.diagonal(0, 1, 2).sum(-1), torch.full((3,), D - N).double())


def test_a_projection_serves_where_the_error_loses_rank() -> None:
    error = noise(4, N, D)
    error[0, 1] = error[0, 0]
    error[1, 2] = 0
    error[2] = 0
    p = matrix(Projection.without(error))
    torch.testing.assert_close(error @ p, torch.zeros_like(error), rtol=0, atol=1e-7)
    ranks = torch.tensor([D - N + 1, D - N + 1, D, D - N]).double()
    torch.testing.assert_close(p.diagonal(0, 1, 2).sum(-1), ranks)


def test_references_and_means_agree_in_the_projection() -> None:
    references, means = noise(2, N, D), noise(2, N, D, seed=1)
    projection = Projection.aligning(references, means)
    here, there = projection(directions(references)), projection(directions(means))
    torch.testing.assert_close(here, there, rtol=0, atol=1e-5)  # 1e-6 is in the norms


def test_closeness_against_a_basis_of_singular_vectors() -> None:
    """The papers' form: coordinates in an orthonormal basis of the null space."""
    error, queries, centres = noise(2, N, D), noise(2, 7, D, seed=1), noise(2, 9, D, seed=2)
    found = Projection.without(error).closeness(queries, centres)
    for e in range(2):
        basis = torch.linalg.svd(error[e]).Vh[N:].T
        for q, query in enumerate(queries[e]):
            for v, centre in enumerate(centres[e]):
                expected = -((query - centre) @ basis).square().sum()
                torch.testing.assert_close(found[e, q, v], expected)


def test_without_an_error_closeness_is_euclidean() -> None:
    queries, centres = noise(1, 7, D), noise(1, 9, D, seed=1)
    found = Projection.without(torch.zeros(1, N, D).double()).closeness(queries, centres)
    torch.testing.assert_close(found, -torch.cdist(queries, centres).square())


def test_no_gradient_goes_through_the_projection() -> None:
    references = noise(1, N, D).requires_grad_()
    assert not Projection.aligning(references, noise(1, N, D, seed=1)).rows.requires_grad


# --- TapNet ---


@both_shots
def test_tapnet_gives_the_reference_logits(shots: int) -> None:
    g = stored("tapnet_own", shots)
    means = prototypes(g["support"][None], g["labels"][None], N, normalise=False)
    references = References(g["references"], g["bias"]).chosen(g["chosen"][None])
    projection = Projection.aligning(told_apart(references.points), means)
    torch.testing.assert_close(matrix(projection)[0], g["projector"], rtol=0, atol=1e-10)
    logits = projection.closeness(g["query"][None], references.points) + 2 * references.bias
    torch.testing.assert_close(logits[0], g["logits"], rtol=0, atol=1e-9)


@both_shots
def test_references_are_chosen_by_the_papers_closeness(shots: int) -> None:
    """Class after class, as in the paper: `chosen` is what the same closeness gives."""
    g = stored("tapnet_own", shots)
    means = prototypes(g["support"][None], g["labels"][None], N, normalise=False)
    fit = closeness(References(g["references"], g["bias"]), means)[0]
    free = list(range(fit.shape[1]))
    for k in range(N):
        best = max(free, key=lambda r: float(fit[k, r]))
        assert best == g["chosen"][k]
        free.remove(best)


def test_matching_gives_every_class_a_reference_and_the_best_pair_first() -> None:
    fit = noise(6, N, 7)
    places = matched(fit)
    for e in range(6):
        free, classes = set(range(7)), set(range(N))
        while classes:
            k, r = max(
                ((k, r) for k in classes for r in free), key=lambda pair: float(fit[e][pair])
            )
            assert places[e, k] == r
            classes.remove(k)
            free.remove(r)
    order = torch.tensor([3, 0, 4, 1, 2])
    assert torch.equal(matched(fit[:, order]), places[:, order]), "whatever the order of classes"


# --- XtarNet ---


def golden_nets(g: dict[str, Tensor]) -> TaskNets:
    names = {"merge_base": "pre", "merge_meta": "meta", "scale": "gamma", "shift": "beta"}
    depths = {"pre": 4, "meta": 4}
    return TaskNets(
        **{
            ours: [(g[f"{name}_{i}_w"], g[f"{name}_{i}_b"]) for i in range(depths.get(name, 3))]
            for ours, name in (names | {"correlation": "r"}).items()
        }
    )


@both_shots
def test_xtarnet_gives_the_reference_logits(shots: int) -> None:
    g = stored("xtarnet_own", shots)
    nets, labels = golden_nets(g), g["labels"][None]
    support = [g[f"support_{kind}"][None] for kind in ("base", "meta")]
    queries = [g[f"query_{kind}"][None] for kind in ("base", "meta")]
    task = prototypes(torch.cat(support, -1), labels, N, normalise=False).mean(1, keepdim=True)
    shares = [merging(net, task) for net in (nets.merge_base, nets.merge_meta)]
    torch.testing.assert_close(shares[0][0], g["merge_pre"])
    torch.testing.assert_close(shares[1][0], g["merge_meta"])
    support_x, query_x = (
        sum((s * f for s, f in zip(shares, part, strict=True)), torch.zeros(()))
        for part in (support, queries)
    )
    means = prototypes(support_x, labels, N, normalise=False)
    torch.testing.assert_close(means[0], g["class_means"])
    base = conditioned(nets, g["W"], means.mean(1, keepdim=True))
    torch.testing.assert_close(base[0], g["conditioned"])
    attention = correlation(nets.correlation, means @ base.transpose(1, 2)).softmax(-1)
    torch.testing.assert_close(attention[0], g["attention"])
    novel = pushed_away(g["references"], attention, base)
    torch.testing.assert_close(novel[0], g["novel"])
    projection = Projection.aligning(novel, means)
    torch.testing.assert_close(matrix(projection)[0], g["projector"], rtol=0, atol=1e-10)
    logits = projection.closeness(query_x, torch.cat([base, novel], 1))
    torch.testing.assert_close(logits[0], g["logits"], rtol=0, atol=1e-9)


# --- both as methods ---


def task_of(learnt: dict[str, Tensor], seed: int = 0, shots: int = 2) -> Task:
    """Two episodes of N classes beside seven base classes."""
    support = directions(noise(2, N * shots, D, seed=seed))
    return Task(
        ways=N,
        support=support,
        labels=torch.arange(N).repeat(shots).expand(2, -1),
        unlabelled=support[:, :0],
        base_unlabelled=torch.empty(2, 0, 7),
        weights=noise(7, D, seed=5),
        gamma=8.0,
        numbers=torch.arange(2),
        learnt=learnt,
    )


def initial(method: TrainedMethod) -> dict[str, Tensor]:
    """Pieces in double precision, moved a little from where training begins."""
    found = method.initial(noise(7, D, seed=5), 8.0, 1, torch.Generator().manual_seed(0))
    return {
        name: piece.double() + 0.1 * noise(*piece.shape, seed=i)
        for i, (name, piece) in enumerate(found.items())
    }


def asked() -> Queries:
    features = directions(noise(2, 6, D, seed=9))
    return Queries(features, torch.zeros(2, 6, 7))


both_methods = pytest.mark.parametrize("method", [TapNet(), XtarNet(rank=2, hidden=3)])


def without_its_own_parts(learnt: dict[str, Tensor]) -> dict[str, Tensor]:
    """XtarNet's pieces with ω_f = 1, ω_g = 0, μ = ν = 0, and ρ = 0: all base classes alike."""
    own = ("merge", "scale", "shift", "correlation")
    changed = {
        name: torch.zeros_like(piece) for name, piece in learnt.items() if name.split("_")[0] in own
    }
    changed["merge_base_3_bias"] = torch.full((D,), 40.0).double()
    changed["merge_meta_3_bias"] = torch.full((D,), -40.0).double()
    for net in ("scale", "shift"):  # the shortcut passes on what is above 0
        changed[f"{net}_0_bias"] = torch.full((D,), -1e3).double()
    return learnt | changed


def test_xtarnet_without_its_own_parts_is_a_projection_of_references() -> None:
    """As TapNet, with references that are moved by the mean of all base weights."""
    method = XtarNet(rank=2, hidden=3)
    task = task_of(without_its_own_parts(initial(method)))
    assert task.learnt is not None
    means = prototypes(task.support, task.labels, N, normalise=False)
    base = directions(task.weights)
    references = References(task.learnt["references"], torch.zeros(N).double())
    novel = references.chosen(matched(closeness(references, means))).points - base.mean(0)
    expected = ProjectedCentres(
        task,
        Projection.aligning(novel, means),
        base.expand(2, -1, -1),
        novel,
        task.learnt["distance_scale"],
    )
    torch.testing.assert_close(method.fit(task).logits(asked()), expected.logits(asked()))


def test_in_the_whole_space_logits_are_euclidean() -> None:
    learnt = initial(TapNet())
    centres = TapNet().fit(task_of(learnt))
    whole = dataclasses.replace(
        centres, projection=Projection(torch.zeros_like(centres.projection.rows)), bias=None
    )
    everything = torch.cat([centres.base, centres.novel], 1)
    expected = -learnt["scale"] * torch.cdist(asked().features, everything).square()
    torch.testing.assert_close(whole.logits(asked()), expected)


def test_distances_to_base_weights_begin_as_the_models_logits() -> None:
    """−‖f − ŵ‖² γ/2 = γ cos − γ: up to a constant, and without the projection."""
    method = TapNet()
    learnt = method.initial(noise(7, D, seed=5), 8.0, 1, torch.Generator().manual_seed(0))
    task = task_of({name: piece.double() for name, piece in learnt.items()})
    centres = method.fit(task)
    whole = dataclasses.replace(
        centres, projection=Projection(torch.zeros_like(centres.projection.rows))
    )
    expected = direction_logits(asked().features, task.weights, task.gamma) - task.gamma
    torch.testing.assert_close(whole.logits(asked())[..., :7], expected)


@both_methods
def test_references_learn_through_distances_only(method: TrainedMethod) -> None:
    """With a projection that is given, the gradient is the same."""
    learnt = {name: piece.requires_grad_() for name, piece in initial(method).items()}
    task, weights = task_of(learnt), noise(2, 6, 7 + N, seed=3)
    solution = method.fit(task)
    [one] = torch.autograd.grad((solution.logits(asked()) * weights).sum(), learnt["references"])
    centres = solution.centres if isinstance(solution, MergedCentres) else solution
    assert isinstance(centres, ProjectedCentres)
    assert not centres.projection.rows.requires_grad
    assert one.abs().sum() > 0


@both_methods
def test_repeated_supports_and_the_order_of_classes_do_not_matter(method: TrainedMethod) -> None:
    learnt = initial(method)
    task = task_of(learnt)
    first = method.fit(task).logits(asked())
    twice = dataclasses.replace(
        task, support=task.support.repeat(1, 2, 1), labels=task.labels.repeat(1, 2)
    )
    torch.testing.assert_close(method.fit(twice).logits(asked()), first)
    order = torch.tensor([3, 0, 4, 1, 2])
    renamed = dataclasses.replace(task, labels=order[task.labels])
    second = method.fit(renamed).logits(asked())
    torch.testing.assert_close(second[..., :7], first[..., :7])
    torch.testing.assert_close(second[..., 7:][..., order], first[..., 7:])


def test_permuted_base_classes_permute_columns() -> None:
    """Of XtarNet with rows and columns of ρ permuted alike."""
    method, order = XtarNet(rank=2, hidden=3), torch.tensor([4, 2, 6, 0, 1, 5, 3])
    learnt = initial(method)
    task = task_of(learnt)
    renamed = {
        name: piece[order] if "_bias" in name else piece[order][:, order]
        for name, piece in learnt.items()
        if name.startswith("correlation")
    }
    other = dataclasses.replace(task, weights=task.weights[order], learnt=learnt | renamed)
    first, second = (method.fit(t).logits(asked()) for t in (task, other))
    torch.testing.assert_close(second[..., :7], first[..., :7][..., order])
    torch.testing.assert_close(second[..., 7:], first[..., 7:])


@both_methods
def test_struck_base_classes_have_no_say(method: TrainedMethod) -> None:
    """Neither in the columns nor in the attention: their weights may be anything."""
    task = dataclasses.replace(task_of(initial(method)), absent=torch.tensor([[2], [4]]))
    logits = method.fit(task).logits(asked())
    assert (logits[0, :, 2] == float("-inf")).all()
    assert (logits[1, :, 4] == float("-inf")).all()
    assert torch.isfinite(logits).sum() == logits.numel() - 2 * 6


def test_more_novel_classes_than_references_are_refused() -> None:
    with pytest.raises(FewgraftError, match="3 references for 5 novel classes"):
        matched(noise(1, 5, 3))
