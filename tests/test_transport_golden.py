"""Methods of transport and information against outputs of their authors' own code."""

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.transductive.alpha_tim import AlphaTIM
from fewgraft.methods.transductive.bavardage import BaseClasses, VariationalMixture, scaled_axes
from fewgraft.methods.transductive.ilpc import (
    LabelCleaning,
    Labelling,
    mean_losses,
    normalised,
    propagator,
)
from fewgraft.methods.transductive.nearness import squared_distances
from fewgraft.methods.transductive.proto_lp import PLAN_TOLERANCE, PrototypePropagation
from fewgraft.methods.transductive.pt_map import PowerTransport
from fewgraft.methods.transductive.tim import AlternatingTIM, DistanceWeights, GradientTIM
from fewgraft.methods.transductive.transport import (
    Centres,
    equal_shares,
    transport_plan,
)
from fewgraft.prototypes import members_of

pytestmark = pytest.mark.numerical

FOLDER = Path(__file__).parent / "data" / "rivals"
every_task = pytest.mark.parametrize("number", range(4))


@cache
def recorded(name: str) -> dict[str, Tensor]:
    """All tensors of a file; half-precision features become single ones."""
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file if key != "commit"}
    halves = {
        key: a.astype(np.float32) if a.dtype == np.float16 else a for key, a in arrays.items()
    }
    return {key: torch.from_numpy(np.asarray(array)) for key, array in halves.items()}


class Recorded:
    """One task of a file, as an episode of its own."""

    def __init__(self, name: str, number: int) -> None:
        self.outputs, self.prefix = recorded(name), f"t{number}_"

    def __getitem__(self, key: str) -> Tensor:
        return self.outputs[self.prefix + key]

    def task(self, unlabelled: str) -> Task:
        pictures = self[unlabelled][None]
        return Task(
            ways=5,
            support=self["support"][None],
            labels=self["labels"][None],
            unlabelled=pictures,
            base_unlabelled=torch.empty(1, pictures.shape[1], 0),
            weights=torch.empty(0, pictures.shape[2]),
            gamma=10.0,
            numbers=torch.zeros(1, dtype=torch.int64),
        )

    def queries(self, key: str = "queries") -> Queries:
        return Queries(self[key][None], torch.empty(1, len(self[key]), 0))


def near(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.to(expected.dtype), expected, rtol=0, atol=tolerance)


@every_task
@pytest.mark.parametrize(("pictures", "key"), [("queries", "trans"), ("pile", "pile")])
def test_pt_map(number: int, pictures: str, key: str) -> None:
    given = Recorded("ptmap", number)
    method, task = PowerTransport(together=True), given.task(pictures)
    first = method.changed(steps=0).fit(task).logits(given.queries(pictures))
    near(first[0].exp(), given[f"{key}_plan_first"], 3e-4)
    solution = method.fit(task)
    assert isinstance(solution, Centres)
    near(solution.logits(given.queries(pictures))[0].exp(), given[f"{key}_plan"], 3e-4)
    [centres] = solution.centres
    near(centres @ centres.T, given[f"{key}_centre_gram"], 3e-4)


def check_weights(solution: object, given: Recorded, key: str, *, logits: bool = True) -> None:
    assert isinstance(solution, DistanceWeights)
    near(solution.weights[0], given[f"{key}weights"], 1e-4)
    if logits:
        near(solution.logits(given.queries())[0], given[f"{key}logits"], 1e-4)


@every_task
def test_tim_by_gradients(number: int) -> None:
    given = Recorded("tim", number)
    for steps in (1, 10, 1000):
        solution = GradientTIM(steps=steps).fit(given.task("queries"))
        check_weights(solution, given, f"gd{steps}_", logits=steps == 1000)
    check_weights(GradientTIM().fit(given.task("pile")), given, "semi_gd1000_")


@every_task
def test_tim_by_closed_forms(number: int) -> None:
    given = Recorded("tim", number)
    check_weights(AlternatingTIM().fit(given.task("queries")), given, "adm150_")


@every_task
def test_alpha_tim(number: int) -> None:
    given = Recorded("alpha_tim", number)
    check_weights(AlphaTIM().fit(given.task("queries")), given, "")
    early = AlphaTIM(steps=10).fit(given.task("queries"))
    assert isinstance(early, DistanceWeights)
    near(early.weights[0], given["weights_after10"], 1e-4)


@every_task
def test_the_first_round_of_ilpc(number: int) -> None:
    given, method = Recorded("ilpc", number), LabelCleaning()
    task = given.task("queries")
    supports = task.support.shape[1]
    features, _ = method.placed(task.support, task.unlabelled)
    state = Labelling.begin(task.labels, 75, 5)
    factor = propagator(features, method.neighbours, method.alpha)
    reached = normalised(torch.cholesky_solve(state.members(), factor).clamp(min=0))
    near(reached[0, supports:], given["trans_first_prob"], 2e-5)
    plan = transport_plan(
        method.sharpness * reached.clamp(min=1e-300).log(),
        state.remaining_shares(),
        taking=~state.known,
    )
    near(plan[0, supports:], given["trans_first_plan"], 2e-5)
    guessed = state.guessed(plan)
    assert torch.equal(guessed.labels[0, supports:], given["trans_first_label"])
    everything = torch.ones_like(state.known)
    losses = mean_losses(features, state.members(), guessed.one_hot(), everything)
    near(losses[0], given["trans_first_loss"], 2e-5)


@every_task
def test_ilpc_in_the_transductive_setting(number: int) -> None:
    given, method = Recorded("ilpc", number), LabelCleaning(together=True)
    task = given.task("queries")
    answers = method.fit(task).logits(given.queries())[0].argmax(-1)
    assert torch.equal(answers, given["trans_pred"])
    features, _ = method.placed(task.support, task.unlabelled)
    found = method.cleaned(features, task.labels, 5, remaining=True)
    left = found.left[0, task.support.shape[1] :][given["trans_order"]]
    assert torch.equal(left, left.sort().values), "pictures leave in the authors' rounds"


@every_task
def test_ilpc_in_the_semi_supervised_setting(number: int) -> None:
    given, method = Recorded("ilpc", number), LabelCleaning()
    task = given.task("pile")
    features, _ = method.placed(task.support, task.unlabelled)
    found = method.cleaned(features, task.labels, 5)
    assert torch.equal(found.labels[0, task.support.shape[1] :], given["semi_pile_pseudo"])
    near(method.fit(task).logits(given.queries())[0].exp(), given["semi_prob"], 2e-5)


@every_task
def test_proto_lp(number: int) -> None:
    given, method = Recorded("protolp", number), PrototypePropagation(together=True)
    task = given.task("queries")
    first = method.changed(steps=0).fit(task)
    assert isinstance(first, Centres)
    logs = -10 * squared_distances(first.place(task.unlabelled), first.centres)
    plan = transport_plan(logs, equal_shares(logs), PLAN_TOLERANCE)
    near(plan[0], given["plan_first"], 1e-4)
    spread = method.propagated(members_of(task.labels, 5, torch.float64), plan)
    supports = task.support.shape[1]
    near(spread[0, supports:], given["propagated_first"][supports:], 1e-4)
    near(method.fit(task).logits(given.queries())[0].exp(), given["plan"], 1e-4)


@every_task
def test_bavardage(number: int) -> None:
    given, method = Recorded("bavardage", number), VariationalMixture()
    features = recorded("bavardage")["base"]
    task = dataclasses.replace(given.task("queries"), base_features=features)
    base = BaseClasses.of(features)
    pictures = base.placed(torch.cat([task.support, task.unlabelled], 1))
    _, scales = scaled_axes(pictures, base.covariance)
    near(scales[0, 0].sort().values, given["scaling"].sort().values, 1e-4)
    started = method.started(pictures, members_of(task.labels, 5, torch.float64))
    near(started[0, task.support.shape[1] :], given["prob_kmeans"], 1e-4)
    for balanced, key in ((False, "prob_free"), (True, "prob_balanced")):
        solution = method.changed(balanced=balanced).fit(task)
        near(solution.logits(given.queries())[0].exp(), given[key], 1e-4)
