"""Incremental rivals that train nothing beforehand: TEEN and LCwoF."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Task
from fewgraft.methods.incremental.lcwof import (
    Descent,
    HeadCalibration,
    calibrated_heads,
    calibration_set,
    learnt_novel,
)
from fewgraft.methods.incremental.teen import calibrated
from fewgraft.prototypes import directions, prototypes

pytestmark = pytest.mark.numerical
RIVALS = Path(__file__).parent / "data" / "rivals"


def noise(*shape: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


# --- TEEN ---


@pytest.mark.parametrize(("temperature", "alpha"), [("16", "0.1"), ("16", "0.5"), ("1", "0.3")])
def test_teen_gives_what_the_authors_code_gives(temperature: str, alpha: str) -> None:
    stored = np.load(RIVALS / "teen.npz")
    weights = torch.from_numpy(stored["weights"])
    after = torch.from_numpy(stored[f"t{temperature}_a{alpha}_after"])
    found = calibrated(weights[8:], weights[:8], float(alpha), float(temperature))
    torch.testing.assert_close(found, after[8:], rtol=0, atol=1e-6)
    assert torch.equal(weights[:8], after[:8]), "base weights are left alone"


def test_teen_without_a_pull_keeps_directions() -> None:
    novel, base = noise(2, 3, 8), noise(5, 8, seed=1)
    torch.testing.assert_close(calibrated(novel, base, 0.0, 16.0), directions(novel))


def test_teen_at_temperature_0_pulls_to_the_mean_of_base_directions() -> None:
    novel, base = noise(2, 3, 8), noise(5, 8, seed=1)
    mean = directions(directions(base).mean(0))
    torch.testing.assert_close(calibrated(novel, base, 1.0, 0.0), mean.expand(2, 3, 8))
    nearest = directions(base)[(directions(novel) @ directions(base).T).argmax(-1)]
    torch.testing.assert_close(calibrated(novel, base, 1.0, 1e4), nearest)


# --- LCwoF ---


def heads_and_pictures() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Base and novel heads, support with its labels, and a stored picture per base class."""
    base, novel = directions(noise(5, 8)).expand(2, 5, 8), directions(noise(2, 3, 8, seed=1))
    labels = torch.tensor([[0, 1, 2, 2], [2, 0, 1, 0]])
    return base, novel, directions(noise(2, 4, 8, seed=2)), labels, directions(noise(5, 8, seed=3))


def lcwof_task() -> Task:
    base, _, support, labels, stored = heads_and_pictures()
    return Task(
        ways=3,
        support=support,
        labels=labels,
        unlabelled=support[:, :0],
        base_unlabelled=torch.empty(2, 0, 5),
        weights=3 * base[0],
        gamma=6.0,
        numbers=torch.arange(2),
        base_features=stored[:, None],
    )


def by_torch(
    start: Tensor, fixed: Tensor, features: Tensor, labels: Tensor, share: float, descent: Descent
) -> Tensor:
    """One episode by autograd and torch's optimiser; `fixed` heads come first."""
    weights = start.clone().requires_grad_()
    optimiser = torch.optim.SGD(
        [weights], lr=descent.lr, momentum=descent.momentum, weight_decay=descent.decay
    )
    for _ in range(descent.steps):
        logits = 2.0 * features @ torch.cat([fixed, weights]).T
        optimiser.zero_grad()
        torch.autograd.backward(share * cross_entropy(logits, labels))
        optimiser.step()
    return weights.detach()


def test_lcwof_descends_as_torch_does() -> None:
    base, novel, support, labels, stored = heads_and_pictures()
    descent = Descent(steps=7, lr=0.3, momentum=0.9, decay=0.01)
    found = learnt_novel(novel, base, support, labels, 2.0, descent)
    heads = torch.cat([base, found], 1)
    features = torch.cat([stored.expand(2, -1, -1), support], 1)
    answers = torch.cat([torch.arange(5).expand(2, -1), labels + 5], 1)
    after = calibrated_heads(heads, features, answers, 2.0, descent)
    for e in range(2):
        phase_2 = by_torch(novel[e], base[e], support[e], labels[e] + 5, 1.0, descent)
        torch.testing.assert_close(found[e], phase_2)
        phase_3 = by_torch(heads[e], heads[e, :0], features[e], answers[e], 0.1, descent)
        torch.testing.assert_close(after[e], phase_3)


def test_lcwof_without_steps_is_imprinting() -> None:
    task = lcwof_task()
    still = HeadCalibration(steps=0, calibration_steps=0).fit(task)
    torch.testing.assert_close(still.weights[:, :5], directions(task.weights).expand(2, -1, -1))
    expected = prototypes(task.support, task.labels, 3)
    torch.testing.assert_close(still.weights[:, 5:], expected)


def test_lcwof_learns_novel_weights_before_it_moves_base_weights() -> None:
    task = lcwof_task()
    phase_2 = HeadCalibration(calibration_steps=0).fit(task).weights
    assert torch.equal(phase_2[:, :5], directions(task.weights).expand(2, -1, -1))
    assert not torch.allclose(phase_2[:, 5:], prototypes(task.support, task.labels, 3))
    assert not torch.allclose(HeadCalibration().fit(task).weights[:, :5], phase_2[:, :5])


def test_lcwof_calibrates_on_each_base_class_once() -> None:
    task = lcwof_task()
    features, labels = calibration_set(task)
    assert features.shape == (2, 5 + 4, 8)
    for e in range(2):
        assert labels[e, :5].tolist() == [0, 1, 2, 3, 4]
        assert torch.equal(labels[e, 5:], task.labels[e] + 5)
    with pytest.raises(FewgraftError, match="a stored picture per base class"):
        calibration_set(dataclasses.replace(task, base_features=None))
