"""Methods compute where the features are.

Tensors of the device "meta" have shapes and no values. They stand in for a device that the machine
does not have: what mixes them with tensors on the CPU fails as it would there.
"""

import numpy as np
import pytest
import torch

from fewgraft.data.store import ImageStore
from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes
from fewgraft.feature_bank import FeatureBank
from fewgraft.methods import methods
from fewgraft.methods.base import Method
from fewgraft.model import CosineModel, new_model
from fewgraft.network import Network
from fewgraft.split_features import EpisodeFeatures

META = torch.device("meta")
PICTURES, BASE, D = 320, 8, 128
POOLS = Pools(
    novel={k: np.arange(k * 20, (k + 1) * 20) for k in range(BASE, 16)},
    base=np.arange(BASE * 20),
    base_labels=np.arange(BASE * 20) // 20,
    n_base=BASE,
)
FASTER = {"steps": 2, "batch": 4}


@pytest.fixture
def _no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions about values have no answer here: nothing is wrong with them."""
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda _: False)


def elsewhere(icons: ImageStore) -> EpisodeFeatures:
    bank = FeatureBank.of(torch.randn(PICTURES, D), torch.arange(PICTURES), PICTURES).to(META)

    def network() -> Network:
        return Network(model(icons), icons.pictures[:PICTURES])

    return EpisodeFeatures(lambda: bank, torch.randn(BASE, D, device=META), 20.0, network)


def model(icons: ImageStore) -> CosineModel:
    made = new_model("resnet12-tiny", icons.base_classes[:BASE], 32, 1, (0.5,), (0.5,))
    assert made.card.width == D
    return made.to(META)


def all_methods() -> dict[str, Method]:
    found = {name: spec.method for name, spec in methods().items()}
    return {n: m.changed(**FASTER) if m.moves_network else m for n, m in found.items()}


@pytest.mark.usefixtures("_no_values")
@pytest.mark.parametrize("setting", ["s2i", "s2i-transductive", "incremental", "semi-fsl"])
@pytest.mark.parametrize("name", all_methods())
def test_methods_compute_where_the_features_are(name: str, setting: str, icons: ImageStore) -> None:
    changes = {"queries": 3, "base_queries": 6} if "s2i" in setting else {"queries": 3}
    changes |= {"unlabelled": 12} if setting in ("s2i", "semi-fsl") else {}
    settings = EpisodeSettings.paper(setting, 2, ways=3, **changes)
    episodes, _ = sample_episodes(POOLS, settings, 2)
    logits = elsewhere(icons).logits(all_methods()[name], episodes, slice(0, 2))
    assert logits.device == META
    assert logits.shape == (2, episodes.query.shape[1], episodes.n_classes)
