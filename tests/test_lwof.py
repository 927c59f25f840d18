"""LwoF: the authors' own numbers, a triple loop, and limits in which it is something simpler."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.incremental.lwof import GeneratedWeights, LwoF
from fewgraft.methods.nearest_prototype import NearestPrototype
from fewgraft.prototypes import directions

pytestmark = pytest.mark.numerical

GOLDEN = np.load(Path(__file__).parent / "data" / "rivals" / "lwof.npz")
NAMES = {
    "weights": "weight_base",
    "gamma": "scale_cls",
    "average": "wnLayerFavg.weight",
    "attention": "wnLayerWatt.weight",
    "query": "attblock.queryLayer.weight",
    "query_bias": "attblock.queryLayer.bias",
    "keys": "attblock.wkeys",
    "sharpness": "attblock.scale_att",
}
BASE, WAYS = 8, 5
SCALARS = ("gamma", "sharpness")


def golden(name: str) -> Tensor:
    return torch.from_numpy(GOLDEN[name])


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def pieces(shots: int) -> dict[str, Tensor]:
    """The authors' parameters by our names."""
    found = {own: golden(f"s{shots}_param_{theirs}") for own, theirs in NAMES.items()}
    return {k: (v[0] if k in SCALARS else v).clone().requires_grad_() for k, v in found.items()}


def task(shots: int, learnt: dict[str, Tensor], absent: Tensor | None = None) -> Task:
    support = directions(golden(f"s{shots}_support"))
    return Task(
        ways=WAYS,
        support=support,
        labels=golden(f"s{shots}_labels"),
        unlabelled=support[:, :0],
        base_unlabelled=torch.empty(2, 0, BASE),
        weights=learnt["weights"],
        gamma=20.0,
        numbers=torch.arange(2),
        learnt=learnt,
        absent=absent,
    )


def queries(shots: int) -> Queries:
    features = directions(golden(f"s{shots}_query"))
    return Queries(features, torch.empty(2, features.shape[1], BASE))


def answer(shots: int, **changes: Any) -> GeneratedWeights:
    return LwoF().fit(task(shots, {**pieces(shots), **changes}))


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("which", ["all", "some"])
def test_the_authors_numbers(shots: int, which: str) -> None:
    learnt, at = pieces(shots), f"s{shots}_{which}"
    present = golden(f"{at}_base_ids")
    rows = [[k for k in range(BASE) if k not in row] for row in present.tolist()]
    absent = torch.tensor(rows, dtype=torch.int64) if which == "some" else None
    solution = LwoF().fit(task(shots, learnt, absent))
    close(solution.novel, golden(f"{at}_weights")[:, -WAYS:])
    columns = torch.cat([present, BASE + torch.arange(WAYS).expand(2, -1)], 1)  # ours
    logits = solution.logits(queries(shots))
    shift = learnt["gamma"] * golden(f"s{shots}_param_bias")  # one bias, the same in all columns
    kept = logits.gather(2, columns[:, None].expand(-1, logits.shape[1], -1))
    close(kept + shift, golden(f"{at}_logits"))
    assert logits.isinf().sum() == logits.shape[1] * sum(map(len, rows))
    labels = columns.gather(1, golden(f"{at}_query_labels"))
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
    close(loss, golden(f"{at}_loss"))
    loss.backward()  # type: ignore[no-untyped-call]
    for own, theirs in NAMES.items():
        found = learnt[own].grad
        assert found is not None
        wanted = golden(f"{at}_grad_{theirs}")
        close(found, wanted[0] if own in SCALARS else wanted)


def test_a_triple_loop() -> None:
    learnt = {name: tensor.detach() for name, tensor in pieces(5).items()}
    given = task(5, learnt)
    found = LwoF().fit(given).novel
    for e in range(2):
        for way in range(WAYS):
            total = torch.zeros(16)
            members = [i for i, label in enumerate(given.labels[e].tolist()) if label == way]
            for i in members:
                z = given.support[e, i]
                asked = learnt["query"] @ z + learnt["query_bias"]
                cosines = [float(asked @ k / (asked.norm() * k.norm())) for k in learnt["keys"]]
                powers = np.exp(float(learnt["sharpness"]) * np.array(cosines))
                recalled = torch.zeros(16)
                for share, w in zip(powers / powers.sum(), learnt["weights"], strict=True):
                    recalled += float(share) * w / w.norm()
                total += learnt["average"] * z + learnt["attention"] * recalled
            torch.testing.assert_close(found[e, way], total / len(members), rtol=1e-4, atol=1e-5)


def test_without_attention_it_imprints() -> None:
    changes = {"average": torch.ones(16), "attention": torch.zeros(16)}
    found = answer(5, **changes)
    plain = NearestPrototype().fit(task(5, pieces(5))).novel
    torch.testing.assert_close(directions(found.novel), plain)


def test_dull_attention_recalls_the_mean_and_sharp_attention_the_nearest() -> None:
    only = {"average": torch.zeros(16), "attention": torch.ones(16)}
    weights = directions(pieces(1)["weights"])
    found = answer(1, sharpness=torch.tensor(0.0), **only).novel
    torch.testing.assert_close(found, weights.mean(0).expand_as(found))
    to_itself = {"query": torch.eye(16), "query_bias": torch.zeros(16), "keys": weights}
    found = answer(1, sharpness=torch.tensor(1e5), **only, **to_itself).novel
    given = task(1, pieces(1))
    nearest = weights[(given.support @ weights.T).argmax(-1)]  # [E, S, d]
    for e in range(2):
        torch.testing.assert_close(found[e][given.labels[e]], nearest[e])


def test_base_classes_in_another_order_and_repeated_supports() -> None:
    learnt, order = pieces(5), torch.randperm(BASE, generator=torch.Generator().manual_seed(0))
    first = LwoF().fit(task(5, learnt)).logits(queries(5))
    turned = {**learnt, "weights": learnt["weights"][order], "keys": learnt["keys"][order]}
    second = LwoF().fit(task(5, turned)).logits(queries(5))
    torch.testing.assert_close(second[..., :BASE], first[..., :BASE][..., order])
    torch.testing.assert_close(second[..., BASE:], first[..., BASE:])
    given = task(5, learnt)
    twice = dataclasses.replace(
        given, support=given.support.repeat(1, 2, 1), labels=given.labels.repeat(1, 2)
    )
    torch.testing.assert_close(LwoF().fit(twice).logits(queries(5)), first)


def test_struck_classes_have_no_gradient() -> None:
    learnt, absent = pieces(5), torch.tensor([[1, 6], [6, 1]])
    logits = LwoF().fit(task(5, learnt, absent)).logits(queries(5))
    logits[..., BASE:].logsumexp(-1).sum().backward()  # type: ignore[no-untyped-call]
    for name in ("keys", "weights"):
        gradient = learnt[name].grad
        assert gradient is not None
        assert (gradient[[1, 6]] == 0).all()
        assert (gradient[[0, 2, 3, 4, 5, 7]] != 0).any(1).all()
