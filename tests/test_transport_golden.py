"""Methods of transport and information against outputs of their authors' own code."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fewgraft.methods.base import Queries, Task
from fewgraft.methods.transductive.pt_map import PowerTransport

pytestmark = pytest.mark.numerical

FOLDER = Path(__file__).parent / "data" / "rivals"
every_task = pytest.mark.parametrize("number", range(4))


@cache
def recorded(name: str) -> dict[str, Tensor]:
    """All tensors of a file; half-precision features become single ones."""
    with np.load(FOLDER / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file if key != "commit"}
    halves = {key: a.astype(np.float32) if a.dtype == np.float16 else a for key, a in arrays.items()}
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
    for steps, output in ((0, "plan_first"), (20, "plan")):
        solution = PowerTransport(steps=steps, together=True).fit(given.task(pictures))
        plan = solution.logits(given.queries(pictures)).exp()
        near(plan[0], given[f"{key}_{output}"], 3e-4)
    [centres] = solution.centres
    near(centres @ centres.T, given[f"{key}_centre_gram"], 3e-4)
