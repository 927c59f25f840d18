"""Incremental rivals that train nothing beforehand: TEEN and LCwoF."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fewgraft.methods.incremental.teen import calibrated
from fewgraft.prototypes import directions

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
