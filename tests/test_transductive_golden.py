"""Transductive and semi-supervised methods give what their authors' code gave."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.methods.base import Method, Queries, Task
from fewgraft.methods.transductive.bd_cspn_code import RectifiedByClass, centre
from fewgraft.methods.transductive.epnet import EmbeddingPropagation
from fewgraft.methods.transductive.ici import InstanceCredibility, credibility, principal
from fewgraft.methods.transductive.laplacian_shot import LaplacianShot, smoothed
from fewgraft.methods.transductive.subspace import Subspace
from fewgraft.methods.transductive.tafssl_bkm import ClusterNeighbours
from fewgraft.methods.transductive.tafssl_msp import SurestPrototypes
from fewgraft.methods.transductive.tpn import edges, propagate, targets
from fewgraft.prototypes import directions, members_of

pytestmark = pytest.mark.numerical

RIVALS = Path(__file__).parent / "data" / "rivals"
WAYS = 5
every_task = pytest.mark.parametrize("t", ["t0", "t1", "t2", "t3"])
both_settings = pytest.mark.parametrize("setting", ["trans", "semi"])


@cache
def golden(name: str) -> dict[str, NDArray[np.float64]]:
    with np.load(RIVALS / f"{name}.npz") as file:
        return {key: file[key] for key in file.files if key != "commit"}


def tensor(name: str, key: str) -> Tensor:
    """Features are kept in half precision."""
    found = torch.from_numpy(golden(name)[key])
    return found.float() if found.dtype == torch.float16 else found


def given(name: str, t: str, setting: str) -> tuple[Task, Queries]:
    """One episode; in the transductive setting U is the query set."""
    support, queries = tensor(name, f"{t}_support")[None], tensor(name, f"{t}_queries")[None]
    unlabelled = queries if setting == "trans" else tensor(name, f"{t}_pile")[None]
    mean = tensor(name, f"{t}_base_mean") if f"{t}_base_mean" in golden(name) else None
    task = Task(
        ways=WAYS,
        support=support,
        labels=tensor(name, f"{t}_labels")[None],
        unlabelled=unlabelled,
        base_unlabelled=unlabelled[..., :0],
        weights=support[0, :0],
        gamma=10.0,
        numbers=torch.tensor([0]),
        base_features=None if mean is None else mean[None, None],
    )
    return task, Queries(queries, queries[..., :0])


def answer(method: Method, name: str, t: str, setting: str) -> Tensor:
    task, queries = given(name, t, setting)
    return method.fit(task).logits(queries)[0]


def agrees(found: Tensor, name: str, key: str, tolerance: float) -> None:
    expected = torch.as_tensor(golden(name)[key]).to(found.dtype)
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@every_task
@pytest.mark.parametrize(("setting", "centring"), [("trans", "apart"), ("semi", "joint")])
def test_tafssl_msp(t: str, setting: str, centring: str) -> None:
    method = SurestPrototypes().changed(centring=centring)
    plain = method.changed(rounds=0, dimensions=4)
    agrees(answer(method, "tafssl", t, setting).exp(), "tafssl", f"{t}_{setting}_msp", 1e-4)
    agrees(answer(plain, "tafssl", t, setting).exp(), "tafssl", f"{t}_{setting}_ica4", 1e-4)
    if setting == "trans":
        found = answer(method.changed(subspace="pca"), "tafssl", t, setting).exp()
        agrees(found, "tafssl", f"{t}_trans_pca_msp", 1e-4)


@every_task
@pytest.mark.parametrize(
    ("setting", "centring", "clusters"), [("trans", "apart", "hard"), ("semi", "joint", "soft")]
)
def test_tafssl_bkm(t: str, setting: str, centring: str, clusters: str) -> None:
    """k-means has many local optima: with the clusters that the authors' seed leads to."""
    method = ClusterNeighbours().changed(centring=centring, clusters=clusters)
    task, queries = given("tafssl", t, setting)
    space = Subspace.of(task, method.dimensions, method.subspace, method.centring)
    points = torch.cat([space.support, space.unlabelled], 1)[0].numpy()
    centres = KMeans(WAYS, n_init=10, random_state=0).fit(points).cluster_centers_
    found = method.weighed(task, space, torch.from_numpy(centres)[None])
    key = f"{t}_{setting}_bkm"
    agrees(found.logits(queries)[0].exp(), "tafssl", key, 1e-4)


@every_task
@both_settings
def test_tafssl_basis_up_to_a_rotation(t: str, setting: str) -> None:
    task, _ = given("tafssl", t, setting)
    ours = Subspace.of(task, 10, "ica", "apart" if setting == "trans" else "joint").basis[0]
    theirs = tensor("tafssl", f"{t}_{setting}_bkm_basis").double()
    theirs = torch.linalg.qr(theirs).Q
    torch.testing.assert_close(ours @ ours.T, theirs @ theirs.T, rtol=0, atol=1e-4)


@every_task
@both_settings
def test_ici(t: str, setting: str) -> None:
    found = answer(InstanceCredibility(), "ici", t, setting)
    assert torch.equal(found.argmax(-1), tensor("ici", f"{t}_{setting}_pred"))
    agrees(found.exp(), "ici", f"{t}_{setting}_prob", 1e-6)


@every_task
def test_the_first_path_of_ici(t: str) -> None:
    task, _ = given("ici", t, "semi")
    pictures = directions(torch.cat([task.support, task.unlabelled], 1).double())
    labels = torch.cat([task.labels[0], tensor("ici", f"{t}_semi_first_pseudo")])[None]
    since, _ = credibility(principal(pictures, 5), members_of(labels, WAYS, torch.float64))
    assert torch.equal(since[0], tensor("ici", f"{t}_semi_first_zero_at").long())


@every_task
@both_settings
def test_epnet(t: str, setting: str) -> None:
    key = f"{t}_{setting}_logits"
    together = answer(EmbeddingPropagation(together=True), "epnet", t, setting)
    agrees(together, "epnet", key, 1e-5)
    if setting == "trans":  # a query that is in U is that vertex
        alone = answer(EmbeddingPropagation(pseudo_labels=False), "epnet", t, setting)
        agrees(alone, "epnet", key, 1e-5)


@every_task
@both_settings
def test_tpn(t: str, setting: str) -> None:
    task, queries = given("tpn", t, "semi")
    parts = [task.support, *([task.unlabelled] if setting == "semi" else []), queries.features]
    vertices = torch.cat(parts, 1).double()
    sigma = tensor("tpn", f"{t}_{setting}_sigma").double()[None, :, None]
    labels = targets(task.labels, WAYS, vertices)
    found = propagate(edges(vertices / sigma, 20), labels, 0.99)[0]
    largest = golden("tpn")[f"{t}_{setting}_F_support"].max()
    n_support = task.support.shape[1]
    expected = tensor("tpn", f"{t}_{setting}_F").double()
    torch.testing.assert_close(found[-75:], expected, rtol=0, atol=1e-5 * largest)
    # The authors work in single precision, where the scores of supports are off by 1.4e-5.
    expected = tensor("tpn", f"{t}_{setting}_F_support").double()
    torch.testing.assert_close(found[:n_support], expected, rtol=0, atol=2e-5 * largest)
    classes = [
        task.labels[0],
        tensor("tpn", f"{t}_pile_labels"),
        tensor("tpn", f"{t}_query_labels"),
    ]
    if setting == "trans":
        del classes[1]
    loss = cross_entropy(found, torch.cat(classes)).item()
    assert loss == pytest.approx(float(golden("tpn")[f"{t}_{setting}_loss"]), abs=1e-5)


@every_task
@pytest.mark.parametrize("kind", ["rect", "plain"])
def test_laplacian_shot(t: str, kind: str) -> None:
    name, start = "laplacianshot", f"{t}_{kind}_"
    strength = float(golden(name)[start + "lambda"])
    method = LaplacianShot(strength=strength, rectified=kind == "rect")
    task, _ = given(name, t, "trans")
    mean = centre(task)
    support, unlabelled = (
        directions(part.double() - mean) for part in (task.support, task.unlabelled)
    )
    placed = method.place(support, unlabelled, task.labels, WAYS)
    agrees(placed.distances[0], name, start + "unary", 1e-6)
    places = method.places(placed.unlabelled)
    edges = torch.zeros(75, 75).scatter_(1, places[0], 1.0)
    assert torch.equal(edges, tensor(name, start + "W").float())
    logits, steps = smoothed(placed.distances, places, method)
    assert steps.item() == golden(name)[start + "updates"]
    agrees(logits[0].softmax(-1), name, start + "Y", 1e-6)
    found = answer(method.changed(together=True), name, t, "trans")
    agrees(found.exp(), name, start + "Y", 1e-6)
    alone = answer(method, name, t, "trans")  # one more step, from where they stopped
    agrees(alone.exp(), name, start + "Y", 1e-4)


@every_task
@both_settings
def test_bd_cspn(t: str, setting: str) -> None:
    task, queries = given("bdcspn", t, setting)
    found = RectifiedByClass().fit(task)
    logits = found.logits(queries)[0]
    agrees(found.novel[0], "bdcspn", f"{t}_{setting}_prototypes", 1e-6)
    agrees((-logits).sqrt(), "bdcspn", f"{t}_{setting}_distances", 1e-6)
