"""Features around a centre per class over the pictures of Icons, as networks give them."""

import torch

from fewgraft.data.store import ImageStore
from fewgraft.feature_bank import FeatureBank
from fewgraft.model import new_model
from fewgraft.session_features import SessionFeatures


def made_features(icons: ImageStore, split: str = "test", queries: int = 15) -> SessionFeatures:
    """No network is asked: centres and noise are drawn."""
    model = new_model("conv4", icons.base_classes, 32, 1, [0.5], [0.5], seed=0)
    made = SessionFeatures(model, icons, split, queries=queries)
    rng, width = torch.Generator().manual_seed(0), model.card.width
    centres = torch.randn(len(icons.classes), width, generator=rng)
    pictures = torch.from_numpy(made.pools.pictures)
    labels = torch.from_numpy(icons.labels).long()[pictures]
    noise = torch.randn(len(pictures), width, generator=rng)
    made.bank = FeatureBank.of(centres[labels] + 2.5 * noise, pictures, len(icons))
    made.weights = centres[:108]
    made.gamma = 12.0
    return made
