"""The losses of adaptation against naive loops and against another library."""

import math

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss
from torch import Tensor
from torch.autograd import gradcheck

from fewgraft.methods.losses import distillation, nt_xent

pytestmark = pytest.mark.numerical


def pair(seed: int = 0, size: int = 5, width: int = 7) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    first = torch.randn(size, width, generator=rng, dtype=torch.float64)
    return first, first + 0.5 * torch.randn(size, width, generator=rng, dtype=torch.float64)


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_nt_xent_is_the_papers_sum(temperature: float) -> None:
    first, second = pair()
    views = first.tolist() + second.tolist()
    total = 0.0
    for i, anchor in enumerate(views):
        positive = (i + len(first)) % len(views)
        others = [k for k in range(len(views)) if k != i]
        assert len(others) == 2 * len(first) - 1
        terms = {k: math.exp(cosine(anchor, views[k]) / temperature) for k in others}
        total -= math.log(terms[positive] / sum(terms.values()))
    expected = total / len(views)
    assert nt_xent(first, second, temperature).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_nt_xent_is_that_of_pytorch_metric_learning(temperature: float) -> None:
    first, second = pair(3, size=8)
    labels = torch.arange(8).repeat(2)
    theirs = NTXentLoss(temperature=temperature)(torch.cat([first, second]), labels)
    assert nt_xent(first, second, temperature).item() == pytest.approx(theirs.item(), rel=1e-6)


def test_nt_xent_of_a_single_picture_and_of_equal_ones_is_finite() -> None:
    first, second = pair(size=1)
    assert nt_xent(first, second, 0.1).item() == pytest.approx(0.0)
    same = torch.ones(4, 3)
    assert nt_xent(same, same, 0.1).item() == pytest.approx(math.log(7), rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_distillation_is_the_soft_cross_entropy(temperature: float) -> None:
    student, teacher = pair(1)
    total = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        soft = [math.exp(v / temperature) for v in t]
        own = [math.exp(v / temperature) for v in s]
        total -= sum(a / sum(soft) * math.log(b / sum(own)) for a, b in zip(soft, own, strict=True))
    expected = total / len(student)
    assert distillation(student, teacher, temperature).item() == pytest.approx(expected, rel=1e-9)


def test_a_student_that_agrees_has_the_least_loss() -> None:
    student, teacher = pair(2)
    least = distillation(teacher, teacher, 2.0)
    assert distillation(student, teacher, 2.0) > least
    own = teacher.clone().requires_grad_()
    torch.autograd.backward(distillation(own, teacher, 2.0))
    assert own.grad is not None
    assert own.grad.abs().max() < 1e-12


def test_gradients() -> None:
    first, second = (part.requires_grad_() for part in pair(4, size=3, width=4))
    assert gradcheck(lambda a, b: nt_xent(a, b, 0.5), (first, second))
    assert gradcheck(lambda a: distillation(a, second.detach(), 2.0), (first,))
