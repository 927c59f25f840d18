"""Methods that keep more than class weights from session to session, against the same all at once.

FeCAM and RanPAC keep means and moments, so that sessions one after the other are one session of all
classes. Attractor and LCwoF descend in every session: a loop does the same with PyTorch's own
gradients.
"""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from fewgraft.methods.base import Method, Queries, Task
from fewgraft.methods.carried import Carried
from fewgraft.methods.incremental.attractor import DECAY, Attractor, LinearClassifier, attractors
from fewgraft.methods.incremental.fecam import FeCAM
from fewgraft.methods.incremental.lcwof import CALIBRATION_SHARE, HeadCalibration
from fewgraft.methods.incremental.ranpac import RanPAC
from fewgraft.prototypes import direction_logits, directions

pytestmark = pytest.mark.numerical

BASE, EACH, D, Q, SESSIONS, WAYS, SHOTS, GAMMA = 6, 9, 8, 7, 3, 2, 3, 12.0


def drawn(*shape: int, seed: int) -> Tensor:
    return directions(torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed)))


STORED = directions(drawn(BASE, 1, seed=0) + 0.6 * drawn(BASE, EACH, seed=1))
WEIGHTS = STORED.mean(1)
SUPPORT = drawn(SESSIONS, WAYS * SHOTS, seed=2)  # class by class
ASKED = drawn(Q, seed=3)[None]


def after_sessions(method: Method, learnt: dict[str, Tensor] | None = None) -> list[Carried]:
    """The classifier after each session, session 0 first where the method changes base classes."""
    carried, found = Carried.begin(WEIGHTS, GAMMA), []
    sessions = [(0, SUPPORT[0, :0])] if method.changes_base else []
    for ways, support in [*sessions, *((WAYS, one) for one in SUPPORT)]:
        task = carried.task(ways, support, support[:0], 0)
        task = dataclasses.replace(task, base_features=STORED, learnt=learnt)
        carried = carried.after(method.fit(task))
        found.append(carried)
    return found


def at_once(method: Method, sessions: int) -> Tensor:
    """Logits [1, Q, K] of one session with all classes so far."""
    task = Task(
        ways=sessions * WAYS,
        support=SUPPORT[:sessions].reshape(1, -1, D),
        labels=torch.arange(sessions * WAYS).repeat_interleave(SHOTS)[None],
        unlabelled=torch.empty(1, 0, D),
        base_unlabelled=torch.empty(1, 0, BASE),
        weights=WEIGHTS,
        gamma=GAMMA,
        numbers=torch.zeros(1, dtype=torch.int64),
        base_features=STORED,
    )
    return method.fit(task).logits(Queries(ASKED, direction_logits(ASKED, WEIGHTS, GAMMA)))


@pytest.mark.parametrize("method", [FeCAM(0.5), RanPAC(0.1, projections=30)])
def test_sessions_are_one_session_of_all_classes(method: Method) -> None:
    begun, *found = after_sessions(method)
    assert begun.logits(ASKED).shape == (1, Q, BASE)
    assert (begun.logits(ASKED) - direction_logits(ASKED, WEIGHTS, GAMMA)).abs().max() > 0.1
    for number, carried in enumerate(found, 1):
        torch.testing.assert_close(
            carried.logits(ASKED), at_once(method, number), rtol=1e-4, atol=1e-5
        )
        assert len(carried.weights) == BASE + number * WAYS


def pieces(method: Attractor) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(4)
    begun = method.initial(WEIGHTS, GAMMA, SHOTS, rng)
    return {name: one + 0.3 * torch.randn(one.shape, generator=rng) for name, one in begun.items()}


def test_attractor_tells_supports_from_classes_of_earlier_sessions() -> None:
    method = Attractor()
    learnt = pieces(method)
    last = after_sessions(method, learnt)[-1]
    exact = {name: one.double() for name, one in learnt.items()}
    base = GAMMA * directions(WEIGHTS).double()
    earlier = torch.empty(D + 1, 0, dtype=torch.float64)
    answers = one_hot(torch.arange(WAYS).repeat_interleave(SHOTS)).double()
    for support in SUPPORT.double():
        pictures = torch.cat([support, torch.ones(len(support), 1, dtype=torch.float64)], 1)
        means = support.view(WAYS, SHOTS, D).mean(1)
        lengths = torch.outer(means.norm(dim=1) + 1e-5, base.norm(dim=1) + 1e-5)
        shares = (exact["tau"] * means @ base.T / lengths).softmax(-1)
        pulled = GAMMA * attractors(exact, base, shares[None])[0]
        pull = exact["log_pull"].exp()[:, None]
        t = pulled.contiguous().clone().requires_grad_()
        descent = torch.optim.LBFGS(
            [t], max_iter=500, tolerance_grad=1e-11, line_search_fn="strong_wolfe"
        )
        fixed = torch.cat([support @ base.T, pictures @ earlier], 1)

        def energy(
            fixed: Tensor = fixed,
            pictures: Tensor = pictures,
            t: Tensor = t,
            pull: Tensor = pull,
            pulled: Tensor = pulled,
            descent: torch.optim.Optimizer = descent,
        ) -> Tensor:
            descent.zero_grad()
            logits = torch.cat([fixed, pictures @ t], 1)
            chosen = torch.cat([torch.zeros_like(fixed), answers], 1)
            loss = cross_entropy(logits, chosen) + DECAY / 2 * t.square().sum()
            loss = loss + (pull * (t - pulled).square()).sum() / WAYS
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        descent.step(energy)  # type: ignore[no-untyped-call]
        earlier = torch.cat([earlier, t.detach()], 1)
    solution = last.solutions[-1]
    assert isinstance(solution, LinearClassifier)
    torch.testing.assert_close(solution.novel[0], earlier, rtol=1e-3, atol=2e-3)
    found = last.logits(ASKED)[0, :, BASE:].double()
    with_one = torch.cat([ASKED[0].double(), torch.ones(Q, 1, dtype=torch.float64)], 1)
    torch.testing.assert_close(found, with_one @ earlier, rtol=1e-3, atol=2e-3)


def sgd(weights: Tensor, lr: float, method: HeadCalibration) -> torch.optim.SGD:
    return torch.optim.SGD([weights], lr, momentum=method.momentum, weight_decay=method.decay)


def test_lcwof_goes_on_with_all_heads_and_one_support_per_class() -> None:
    method = HeadCalibration(lr=0.02, calibration_lr=0.05, steps=15, calibration_steps=10)
    found = after_sessions(method)[-1].logits(ASKED)[0]
    gamma, heads = GAMMA / method.temperature, directions(WEIGHTS)
    stored = STORED[:, 0]
    for support in SUPPORT:
        labels = torch.arange(WAYS).repeat_interleave(SHOTS) + len(heads)
        novel = directions(support.view(WAYS, SHOTS, D).mean(1)).requires_grad_()
        descent = sgd(novel, method.lr, method)
        for _ in range(method.steps):
            descent.zero_grad()
            loss = cross_entropy(gamma * support @ torch.cat([heads, novel]).T, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
        every = torch.cat([heads, novel]).detach().requires_grad_()
        seen = torch.cat([stored, support])
        answers = torch.cat([torch.arange(len(heads)), labels])
        descent = sgd(every, method.calibration_lr, method)
        for _ in range(method.calibration_steps):
            descent.zero_grad()
            loss = CALIBRATION_SHARE * cross_entropy(gamma * seen @ every.T, answers)
            loss.backward()  # type: ignore[no-untyped-call]
            descent.step()
        heads = every.detach()
        stored = torch.cat([stored, support[::SHOTS]])
    torch.testing.assert_close(found, GAMMA * ASKED[0] @ heads.T, rtol=1e-4, atol=1e-4)
