"""A model saves, loads and answers the same; nothing in it is a pickle."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import noise
from torch import Tensor, nn

from fewgraft.errors import FewgraftError
from fewgraft.model import CosineModel, ModelCard, embed_all, load_model, new_model, save_model

pytestmark = pytest.mark.numerical

CLASSES = ("apple", "bear", "bee")


def small_model(seed: int = 0) -> CosineModel:
    return new_model("conv4", CLASSES, 16, 3, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2), seed)


PICTURES = noise(0, 9, 16, 16, 3)


def test_eq_1() -> None:
    model = small_model().eval()
    x = model.prepare(torch.from_numpy(PICTURES))
    features, logits = model.embed(x), model(x)
    for i in range(3):
        for k in range(3):
            cosine = torch.cosine_similarity(features[i], model.weight[k], dim=0)
            assert logits[i, k].item() == pytest.approx(10 * cosine.item(), abs=1e-5)


def test_prepared_pictures_are_normalised_and_channels_last() -> None:
    x = small_model().prepare(torch.from_numpy(PICTURES))
    expected = (PICTURES[4, 3, 2] / 255 - np.array([0.5, 0.4, 0.3])) / 0.2
    np.testing.assert_allclose(x[4, :, 3, 2].numpy(), expected, atol=1e-6)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_the_same_seed_gives_the_same_model_and_leaves_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    a, b, c = small_model(), small_model(), small_model(1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.weight, c.weight)


@pytest.mark.parametrize("half", [False, True])
def test_save_and_load(tmp_path: Path, half: bool) -> None:
    model = small_model().eval()
    save_model(model, tmp_path / "my model", half=half)
    assert sorted(p.name for p in (tmp_path / "my model").iterdir()) == [
        "model.json",
        "model.safetensors",
    ]
    loaded = load_model(tmp_path / "my model")
    assert loaded.card == model.card
    assert not loaded.training
    x = model.prepare(torch.from_numpy(PICTURES))
    with torch.inference_mode():
        tolerance = 0.05 if half else 0.0
        torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=tolerance)


def test_embedding_in_batches_is_embedding() -> None:
    model = small_model().train()
    whole = embed_all(model, PICTURES, batch=100)
    torch.testing.assert_close(embed_all(model, PICTURES, batch=2), whole, rtol=1e-4, atol=1e-5)
    assert model.training, "the mode must be put back"
    assert embed_all(model, PICTURES[:0]).shape == (0, 64)


def test_a_module_or_a_function_of_ones_own(tmp_path: Path) -> None:
    card = ModelCard(
        backbone="custom",
        width=4,
        classes=CLASSES,
        size=16,
        channels=3,
        mean=(0, 0, 0),
        std=(1, 1, 1),
    )

    def mean_colour(pictures: Tensor) -> Tensor:
        return torch.cat([pictures.mean((2, 3)), pictures.amax((1, 2, 3))[:, None]], 1)

    module = nn.Sequential(nn.Flatten(), nn.Linear(768, 4))
    for backbone in (mean_colour, module):
        model = CosineModel(card, backbone)
        assert model(model.prepare(torch.from_numpy(PICTURES))).shape == (9, 3)
        save_model(model, tmp_path / "own")
        with pytest.raises(FewgraftError, match="backbone of its own"):
            load_model(tmp_path / "own")
        again = load_model(tmp_path / "own", model.backbone)
        assert torch.equal(again.weight, model.weight)


def test_damaged_models_are_refused(tmp_path: Path) -> None:
    save_model(small_model(), tmp_path / "m")
    card = tmp_path / "m" / "model.json"
    weights = tmp_path / "m" / "model.safetensors"
    good_card, good_weights = card.read_text(), weights.read_bytes()
    for bad in ("", "{", "[]", good_card.replace('"width"', '"breadth"'), '{"format": 9}'):
        card.write_text(bad)
        with pytest.raises(FewgraftError, match=r"model\.json"):
            load_model(tmp_path / "m")
    card.write_text(json.dumps({**json.loads(good_card), "backbone": "resnet12-tiny"}))
    with pytest.raises(FewgraftError, match="not a file of this model's weights"):
        load_model(tmp_path / "m")
    card.write_text(good_card)
    for damaged in (good_weights[:100], b"", good_weights[:-8]):
        weights.write_bytes(damaged)
        with pytest.raises(FewgraftError, match=r"model\.safetensors"):
            load_model(tmp_path / "m")
    weights.unlink()
    with pytest.raises(FewgraftError):
        load_model(tmp_path / "m")
