"""Eqs. 1 and 2 against plain loops in double precision."""

import math

import pytest
import torch
from torch import Tensor

from fewgraft.prototypes import cosine_logits, join_weights, prototypes


def made(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def plain_prototype(features: list[list[float]], normalise_first: bool) -> list[float]:
    if normalise_first:
        features = [unit(feature) for feature in features]
    return unit([sum(values) / len(features) for values in zip(*features, strict=True)])


@pytest.mark.parametrize("normalise_first", [True, False])
def test_prototypes_with_unequal_shots_agree_with_loops(normalise_first: bool) -> None:
    features = made(0, 3, 9, 6)
    labels = torch.tensor([[0, 0, 0, 0, 1, 1, 2, 2, 2], [2, 1, 0, 2, 1, 0, 2, 1, 1], [0, 1, 2] * 3])
    found = prototypes(features, labels, 3, normalise_first=normalise_first)
    for e in range(3):
        for k in range(3):
            own = features[e][labels[e] == k].tolist()
            torch.testing.assert_close(
                found[e, k], torch.tensor(plain_prototype(own, normalise_first)).double()
            )


def test_the_two_orders_differ_and_agree_at_one_shot() -> None:
    features, labels = made(1, 2, 6, 4), torch.tensor([[0, 0, 1, 1, 2, 2]] * 2)
    first, last = (prototypes(features, labels, 3, normalise_first=f) for f in (True, False))
    assert not torch.allclose(first, last)
    features, labels = features[:, :3], torch.tensor([[0, 1, 2]] * 2)
    first, last = (prototypes(features, labels, 3, normalise_first=f) for f in (True, False))
    torch.testing.assert_close(first, last)


def test_gradients_flow() -> None:
    features = made(2, 1, 4, 3).requires_grad_()
    labels = torch.tensor([[0, 1, 0, 1]])

    def through(x: Tensor) -> Tensor:
        return cosine_logits(x, prototypes(x, labels, 2), 10.0)

    assert torch.autograd.gradcheck(through, (features,))


def test_a_class_without_support_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        prototypes(made(3, 1, 2, 4), torch.tensor([[0, 2]]), 3)


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


def test_zero_features_give_finite_logits() -> None:
    assert torch.isfinite(cosine_logits(torch.zeros(2, 3), torch.zeros(4, 3))).all()


def test_joint_weights_have_base_classes_first() -> None:
    base, novel = made(6, 4, 3), made(7, 2, 5, 3)
    joint = join_weights(base, novel)
    assert joint.shape == (2, 9, 3)
    assert torch.equal(joint[1, :4], base)
    assert torch.equal(joint[1, 4:], novel[1])
