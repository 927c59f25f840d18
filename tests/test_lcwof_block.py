"""LCwoF with the last block moving: limiting cases, and one episode by autograd alone."""

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Queries, Task, TaskPictures
from fewgraft.methods.incremental.lcwof import HeadCalibration
from fewgraft.methods.incremental.lcwof_block import (
    BlockCalibration,
    LinearWeights,
    clipped,
    stored_pictures,
)
from fewgraft.methods.moving import AdaptedSolution
from fewgraft.model import new_model
from fewgraft.network import Network
from fewgraft.prototypes import directions, prototypes

pytestmark = pytest.mark.numerical
BASE, GAMMA = 4, 10.0


@cache
def network() -> Network:
    """A small one, over pictures of noise."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3), np.uint8)
    classes = [str(c) for c in range(BASE)]
    model = new_model("resnet12-tiny", classes, 16, 3, (0.5,) * 3, (0.25,) * 3)
    return Network(model, pixels)


@torch.no_grad()
def task() -> Task:
    """Two episodes of three classes; pictures 40 … 59 are stored ones of base classes."""
    support = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    base = torch.arange(40, 60).view(BASE, 5)
    net = network()
    features = net.features(support)
    return Task(
        ways=3,
        support=features,
        labels=torch.tensor([[0, 1, 2, 2], [2, 0, 1, 0]]),
        unlabelled=features[:, :0],
        base_unlabelled=torch.empty(2, 0, BASE),
        weights=2 * net.features(base).mean(1),
        gamma=GAMMA,
        numbers=torch.arange(2),
        pictures=TaskPictures(net, support, support[:, :0], base),
        base_features=net.features(base),
    )


def asked() -> Queries:
    pictures = torch.arange(10, 22).view(2, 6)
    with torch.no_grad():
        return Queries(network().features(pictures), torch.zeros(2, 6, BASE), pictures)


METHOD = BlockCalibration(steps=3, calibration_steps=2, lr=0.05, calibration_lr=0.2, pull=2.0)


def weights_of(solution: AdaptedSolution, e: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    adapted = solution.episodes[e]
    return adapted.base, adapted.novel, adapted.parameters


def test_without_steps_the_heads_are_the_initial_ones() -> None:
    still = METHOD.changed(steps=0, calibration_steps=0)
    for e in range(2):
        base, novel, block = weights_of(still.fit(task()), e)
        assert torch.equal(base, directions(task().weights))
        assert torch.equal(novel, prototypes(task().support, task().labels, 3)[e])
        assert all(torch.equal(block[name], p) for name, p in network().start.items())


def test_an_endless_pull_leaves_the_heads_alone_to_move() -> None:
    same = {"steps": 6, "calibration_steps": 6, "lr": 0.3, "calibration_lr": 1.0}
    heads = HeadCalibration(temperature=4.0).changed(**same)
    stiff, loose = (METHOD.changed(pull=pull, **same) for pull in (1e6, 1e-3))
    found, expected = (method.fit(task()).logits(asked()) for method in (stiff, heads))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    moving = loose.fit(task()).logits(asked())
    assert (moving - expected).abs().max() > 0.03
    block = stiff.fit(task()).episodes[0].parameters
    for name, p in network().start.items():
        torch.testing.assert_close(block[name], p, rtol=0, atol=1e-5)


def test_phase_2_leaves_the_base_head_to_the_bit() -> None:
    phase_2 = METHOD.changed(calibration_steps=0).fit(task())
    for e in range(2):
        base, novel, block = weights_of(phase_2, e)
        assert torch.equal(base, directions(task().weights))
        assert not torch.equal(novel, prototypes(task().support, task().labels, 3)[e])
        assert any(not torch.equal(block[name], p) for name, p in network().start.items())
    assert not torch.equal(weights_of(METHOD.fit(task()), 0)[0], directions(task().weights))


def test_every_episode_starts_anew() -> None:
    whole = METHOD.fit(task()).logits(asked())
    for e in (1, 0):
        rows, both = slice(e, e + 1), task()
        assert both.pictures is not None
        pictures = dataclasses.replace(both.pictures, support=both.pictures.support[rows])
        parts = {name: getattr(both, name)[rows] for name in ("support", "labels", "numbers")}
        alone = METHOD.fit(dataclasses.replace(both, pictures=pictures, **parts))
        queries = Queries(*(part[rows] for part in dataclasses.astuple(asked())))
        torch.testing.assert_close(alone.logits(queries), whole[rows])
    start = {name: p.clone() for name, p in network().start.items()}
    METHOD.fit(task())
    assert all(torch.equal(p, start[name]) for name, p in network().start.items())


def test_one_stored_picture_per_base_class() -> None:
    pictures = task().pictures
    assert pictures is not None
    assert stored_pictures(pictures, BASE).tolist() == [40, 45, 50, 55]
    without = dataclasses.replace(task(), pictures=dataclasses.replace(pictures, base=None))
    with pytest.raises(FewgraftError, match="a stored picture per base class"):
        METHOD.fit(without)


def test_phases_by_autograd_alone() -> None:
    """Momentum, decay, pull and both rates written out, from a new velocity in each phase."""
    given, net, rate, momentum, decay = task(), network(), 0.1, 0.9, 1e-4
    start = net.start
    block = {name: p.clone() for name, p in start.items()}
    heads = [directions(given.weights), prototypes(given.support, given.labels, 3)[0]]
    assert given.pictures is not None
    support, labels = given.pictures.support[0], given.labels[0] + BASE
    everything = torch.cat([torch.tensor([40, 45, 50, 55]), support])
    phases = [
        (support, labels, 1.0, 3, 0.05, [1]),
        (everything, torch.cat([torch.arange(BASE), labels]), 0.1, 2, 0.2, [0, 1]),
    ]
    for pictures, answers, share, steps, lr, moving in phases:
        velocity: dict[str | int, Tensor] = {}
        for _ in range(steps):
            values: dict[str | int, Tensor] = dict(block.items())
            values |= {k: heads[k] for k in moving}
            leaves = {k: v.clone().requires_grad_() for k, v in values.items()}
            params = {name: leaves[name] for name in block}
            own = [leaves.get(k, heads[k]) for k in (0, 1)]
            logits = GAMMA / 4 * net.features(pictures, params) @ torch.cat(own).T
            loss = share * cross_entropy(logits, answers)
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            for (k, value), gradient in zip(values.items(), gradients, strict=True):
                velocity[k] = momentum * velocity.get(k, 0) + gradient + decay * value
                step = lr if isinstance(k, int) else rate * lr
                moved = value - step * velocity[k]
                if isinstance(k, int):
                    heads[k] = moved
                else:
                    pull = 2 * rate * lr * METHOD.pull
                    block[k] = (moved + pull * start[k]) / (1 + pull)
    base, novel, found = weights_of(METHOD.fit(given), 0)
    torch.testing.assert_close(base, heads[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(novel, heads[1], rtol=1e-4, atol=1e-5)
    for name, expected in block.items():
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-5)


def test_the_gradient_is_limited() -> None:
    large = clipped([torch.tensor([300.0, 0.0]), torch.tensor([400.0])], 100.0)
    torch.testing.assert_close(torch.cat(large), torch.tensor([60.0, 0.0, 80.0]))
    small = [torch.tensor([3.0]), torch.tensor([4.0])]
    assert all(torch.equal(a, b) for a, b in zip(clipped(small, 100.0), small, strict=True))


def test_lengths_of_the_heads_count() -> None:
    weights = LinearWeights({}, torch.eye(2), torch.tensor([[3.0, 4.0]]))
    logits = weights.logits(torch.tensor([[1.0, 2.0]]), 10.0)
    assert logits.tolist() == [[10.0, 20.0, 110.0]]
