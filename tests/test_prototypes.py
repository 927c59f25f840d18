"""Eqs. 1–4 against plain loops in double precision."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fewgraft.prototypes import (
    Refinement,
    base_evidence,
    cosine_logits,
    direction_logits,
    directions,
    join_logits,
    prototypes,
    pseudo_labels,
    refine,
    without_columns,
)

pytestmark = pytest.mark.numerical


def made(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def plain_prototype(features: list[list[float]], normalise: bool) -> list[float]:
    if normalise:
        features = [unit(feature) for feature in features]
    mean = [sum(values) / len(features) for values in zip(*features, strict=True)]
    return unit(mean) if normalise else mean


@pytest.mark.parametrize("normalise", [True, False])
def test_prototypes_with_unequal_shots_agree_with_loops(normalise: bool) -> None:
    features = made(0, 3, 9, 6)
    labels = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2, 2], [2, 1, 0, 2, 1, 0, 2, 1, 1], [0, 1, 2] * 3])
    given = directions(features) if normalise else features
    found = prototypes(given, labels, 3, normalise=normalise)
    for e in range(3):
        for k in range(3):
            own = features[e][labels[e] == k].tolist()
            torch.testing.assert_close(
                found[e, k], torch.tensor(plain_prototype(own, normalise)).double()
            )


def test_the_two_orders_differ_and_agree_at_one_shot() -> None:
    features, labels = made(1, 2, 6, 4), torch.tensor([[0, 0, 1, 1, 2, 2]] * 2)
    first = prototypes(directions(features), labels, 3)
    last = prototypes(features, labels, 3, normalise=False)
    queries = made(8, 2, 5, 4)
    assert not torch.allclose(cosine_logits(queries, first), cosine_logits(queries, last))
    features, labels = features[:, :3], torch.tensor([[0, 1, 2]] * 2)
    first = prototypes(directions(features), labels, 3)
    last = prototypes(features, labels, 3, normalise=False)
    torch.testing.assert_close(cosine_logits(queries, first), cosine_logits(queries, last))


def literal_refinement(case: dict[str, Tensor], e: int, config: Refinement) -> Tensor:
    """Eqs. 2–4 of one episode as the paper writes them, in NumPy, for features of any length."""
    support, labels = case["support"][e].numpy(), case["labels"][e].numpy()
    unlabelled, base = case["unlabelled"][e].numpy(), case["base"].numpy()
    p = np.stack([support[labels == j].mean(0) for j in range(3)])  # Eq. 2
    for _ in range(config.steps):
        weights = np.concatenate([base, p])
        cosines = unlabelled @ weights.T
        cosines /= np.linalg.norm(unlabelled, axis=1)[:, None] * np.linalg.norm(weights, axis=1)
        shares = np.exp(10.0 * cosines)
        y = (shares / shares.sum(1, keepdims=True))[:, len(base) :]
        sums = np.stack([support[labels == j].sum(0) for j in range(3)])
        counts = y.sum(0) + [(labels == j).sum() for j in range(3)]
        p = config.alpha * (y.T @ unlabelled + sums) / counts[:, None] + (1 - config.alpha) * p
    return torch.from_numpy(p)


def test_refinement_to_the_letter() -> None:
    case = refinement_case()
    for name, seed in (("support", 30), ("unlabelled", 31)):
        case[name] = case[name] * (1 + 9 * made(seed, *case[name].shape[:2], 1).abs())
    config = Refinement(steps=3, alpha=0.7, normalise=False)
    novel = prototypes(case["support"], case["labels"], 3, normalise=False)
    base_logits = cosine_logits(case["unlabelled"], case["base"], 10.0)
    given = (case["support"], case["labels"], case["unlabelled"], base_logits, 10.0, config)
    found = refine(novel, *given)
    for e in range(3):
        torch.testing.assert_close(found[e], literal_refinement(case, e, config))
    directed = {**case, **{k: directions(case[k]) for k in ("support", "unlabelled")}}
    assert not torch.allclose(directions(found), refined(directed, Refinement(3, 0.7)), atol=1e-3)


def test_gradients_flow() -> None:
    features = made(2, 1, 4, 3).requires_grad_()
    labels = torch.tensor([[0, 1, 0, 1]])

    def through(x: Tensor) -> Tensor:
        return cosine_logits(x, prototypes(directions(x), labels, 2), 10.0)

    assert torch.autograd.gradcheck(through, (features,))


def test_a_class_without_support_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        prototypes(made(3, 1, 2, 4), torch.tensor([[0, 2]]), 3)


def test_a_label_beyond_the_classes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0 … 1"):
        prototypes(made(3, 1, 3, 4), torch.tensor([[0, 1, 2]]), 2)


def test_cosine_logits_agree_with_loops_and_ignore_length() -> None:
    features, weights = made(4, 2, 5, 7), made(5, 2, 3, 7)
    found = cosine_logits(features, weights, 10.0)
    for e in range(2):
        for q in range(5):
            for k in range(3):
                a, b = unit(features[e, q].tolist()), unit(weights[e, k].tolist())
                expected = 10 * sum(x * y for x, y in zip(a, b, strict=True))
                assert found[e, q, k].item() == pytest.approx(expected)
    torch.testing.assert_close(cosine_logits(3 * features, weights / 5, 10.0), found)


def test_directions_need_no_division() -> None:
    features, weights = made(4, 2, 5, 7), made(5, 2, 3, 7)
    torch.testing.assert_close(directions(features).norm(dim=-1), torch.ones(2, 5).double())
    found = direction_logits(directions(features), weights, 10.0)
    torch.testing.assert_close(found, cosine_logits(features, weights, 10.0))


def test_zero_features_give_finite_logits() -> None:
    assert (directions(torch.zeros(2, 3)) == 0).all()
    assert torch.isfinite(cosine_logits(torch.zeros(2, 3), torch.zeros(4, 3))).all()


# --- refinement ---


def plain_refinement(
    novel: Tensor,
    support: Tensor,
    labels: Tensor,
    unlabelled: Tensor,
    base: Tensor,
    gamma: float,
    config: Refinement,
) -> Tensor:
    """Eqs. 3–4 for one episode, a picture and a class at a time."""

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(unit(a), unit(b), strict=True))

    p = novel.tolist()
    for _ in range(config.steps):
        weights = []
        for x in unlabelled.tolist():
            exponents = [gamma * cosine(x, w) / config.temperature for w in base.tolist()]
            exponents += [
                (gamma * cosine(x, w) + config.novel_bias) / config.temperature for w in p
            ]
            total = sum(math.exp(e) for e in exponents)
            weights.append([math.exp(e) / total for e in exponents[len(base) :]])
        refined = []
        for j in range(len(p)):
            top, bottom = [0.0] * len(p[j]), 0.0
            for x, weight in zip(unlabelled.tolist(), weights, strict=True):
                top = [t + weight[j] * v for t, v in zip(top, unit(x), strict=True)]
                bottom += weight[j]
            for x, label in zip(support.tolist(), labels.tolist(), strict=True):
                if label == j:
                    top = [t + v for t, v in zip(top, unit(x), strict=True)]
                    bottom += 1
            estimate = unit([t / bottom for t in top])
            mixed = [
                config.alpha * e + (1 - config.alpha) * o
                for e, o in zip(estimate, p[j], strict=True)
            ]
            refined.append(unit(mixed))
        p = refined
    return torch.tensor(p, dtype=torch.float64)


def refinement_case(n_base: int = 6) -> dict[str, Tensor]:
    support, labels = directions(made(10, 3, 7, 5)), torch.tensor([[0, 0, 1, 1, 1, 2, 2]] * 3)
    unlabelled, base = directions(made(11, 3, 9, 5)), made(12, n_base, 5)
    return {"support": support, "labels": labels, "unlabelled": unlabelled, "base": base}


def refined(case: dict[str, Tensor], config: Refinement) -> Tensor:
    novel = prototypes(case["support"], case["labels"], 3)
    base_logits = cosine_logits(case["unlabelled"], case["base"], 10.0)
    return refine(
        novel,
        case["support"],
        case["labels"],
        case["unlabelled"],
        base_logits,
        10.0,
        config,
    )


@pytest.mark.parametrize("n_base", [0, 6])
@pytest.mark.parametrize(
    "config",
    [
        Refinement(),
        Refinement(steps=4, alpha=0.3),
        Refinement(steps=2, temperature=2.0, novel_bias=-0.7),
    ],
    ids=str,
)
def test_refinement_agrees_with_loops(config: Refinement, n_base: int) -> None:
    case = refinement_case(n_base)
    found = refined(case, config)
    start = prototypes(case["support"], case["labels"], 3)
    for e in range(3):
        expected = plain_refinement(
            start[e],
            case["support"][e],
            case["labels"][e],
            case["unlabelled"][e],
            case["base"],
            10.0,
            config,
        )
        torch.testing.assert_close(found[e], expected)


def test_gradients_flow_through_the_pseudo_labels() -> None:
    case = refinement_case()
    unlabelled = case["unlabelled"][:1].requires_grad_()
    support, base = case["support"][:1].requires_grad_(), case["base"].requires_grad_()

    def through(support: Tensor, unlabelled: Tensor, base: Tensor) -> Tensor:
        support, unlabelled = directions(support), directions(unlabelled)
        part = {"support": support, "labels": case["labels"][:1], "unlabelled": unlabelled}
        return refined({**part, "base": base}, Refinement(steps=2, alpha=0.6))

    assert torch.autograd.gradcheck(through, (support, unlabelled, base))


def labelled(novel: Tensor, base: Tensor, config: Refinement) -> Tensor:
    return pseudo_labels(novel, base_evidence(base, config), config)


def test_pseudo_labels_are_a_slice_of_the_whole_softmax() -> None:
    novel, base = 3 * made(20, 2, 8, 3), 3 * made(21, 2, 8, 5)
    whole = torch.cat([base, novel], -1).softmax(-1)
    torch.testing.assert_close(labelled(novel, base, Refinement()), whole[..., 5:])


def test_an_empty_unlabelled_set_changes_nothing() -> None:
    case = refinement_case()
    case["unlabelled"] = case["unlabelled"][:, :0]
    start = prototypes(case["support"], case["labels"], 3)
    torch.testing.assert_close(refined(case, Refinement(steps=3)), start)


def test_a_struck_out_base_class_counts_for_nothing() -> None:
    """Rehearsal on base classes: overwriting rows of W_b is striking out and appending."""
    case = refinement_case()
    logits = cosine_logits(case["unlabelled"], case["base"], 10.0)
    classes = torch.tensor([[0, 2], [5, 1], [3, 4]])
    struck = without_columns(logits, classes)
    for e in range(3):
        rest = [k for k in range(6) if k not in classes[e].tolist()]
        torch.testing.assert_close(struck[e][:, rest], logits[e][:, rest])
        assert torch.isinf(struck[e][:, classes[e]]).all()
        torch.testing.assert_close(struck[e].softmax(-1)[:, rest], logits[e][:, rest].softmax(-1))


def test_joint_logits_have_base_classes_first() -> None:
    base, novel = made(6, 2, 3, 4), made(7, 2, 3, 5)
    joint = join_logits(base, novel)
    assert torch.equal(joint[..., :4], base)
    assert torch.equal(joint[..., 4:], novel)
