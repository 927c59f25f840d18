"""What is kept of base classes: computed, stored, found again, and refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fewgraft.base_knowledge import (
    EXEMPLARS,
    FILE,
    BaseKnowledge,
    KnowledgeCard,
    has_knowledge,
    knowledge_folder,
    load_knowledge,
    save_knowledge,
)
from fewgraft.base_pictures import base_knowledge, some_of_each
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.methods.graft import Graft
from fewgraft.model import load_model, weights_hash
from fewgraft.split_features import SplitFeatures
from fewgraft.training.recipe import load_recipe
from fewgraft.training.run import train
from fewgraft.zoo import models_folder, shipped_model

ICONS, LARGEST = models_folder("icons"), 3_000_000


def made() -> BaseKnowledge:
    rng = torch.Generator().manual_seed(0)
    shapes = (3, 4, 6), (6, 6), (5, 5)
    return BaseKnowledge(*(torch.randn(*s, generator=rng).half().float() for s in shapes))


def saved(folder: Path, knowledge: BaseKnowledge) -> None:
    save_knowledge(knowledge, KnowledgeCard(stage="s", weights="w", data="d"), folder)


def test_what_is_stored_is_found_again(tmp_path: Path) -> None:
    assert not has_knowledge(tmp_path, "s")
    whole, bare = made(), BaseKnowledge(made().exemplars, made().spread)
    for knowledge in (whole, bare):
        saved(tmp_path, knowledge)
        found, card = load_knowledge(tmp_path, "s", torch.empty(3, 6), "w")
        assert found.hash == knowledge.hash
        assert card.data == "d"
    assert whole.hash != bare.hash
    assert has_knowledge(tmp_path, "s")


def test_another_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, made())
    with pytest.raises(FewgraftError, match="another model"):
        load_knowledge(tmp_path, "s", torch.empty(3, 6), "v")
    with pytest.raises(FewgraftError, match="do not fit 4 classes"):
        load_knowledge(tmp_path, "s", torch.empty(4, 6), "w")
    broken = made()
    broken.spread[0, 0] = float("nan")
    saved(tmp_path, broken)
    with pytest.raises(FewgraftError, match="not finite"):
        load_knowledge(tmp_path, "s", torch.empty(3, 6), "w")
    (knowledge_folder(tmp_path, "s") / FILE).write_bytes(b"damaged")
    with pytest.raises(FewgraftError, match="readable file of base knowledge"):
        load_knowledge(tmp_path, "s", torch.empty(3, 6), "w")


def test_pictures_are_the_same_in_every_run() -> None:
    pools = [np.arange(100), np.arange(100, 110)]
    first, second = (some_of_each(pools, 60) for _ in range(2))
    assert [len(own) for own in first] == [60, 10]
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(FewgraftError, match="has no pictures"):
        some_of_each([np.arange(3), np.arange(0)], 2)


@pytest.mark.parametrize("name", ["icons", "cifar-fs"])
def test_what_ships_stands_on_the_models_that_ship(name: str) -> None:
    folder = models_folder(name)
    model = load_model(folder / "algorithm-2")
    found, _ = load_knowledge(folder, "algorithm-2", model.weight, weights_hash(model))
    assert found.exemplars.shape[:2] == (len(model.weight), EXEMPLARS)
    assert found.mid_spread is not None
    assert (knowledge_folder(folder, "algorithm-2") / FILE).stat().st_size < LARGEST


def test_stored_or_computed_it_is_the_same(icons: ImageStore, tmp_path: Path) -> None:
    """`train --only graft` stores it; without a folder it is computed."""
    metrics = train(load_recipe("icons"), icons, tmp_path, ["graft"])
    assert list(metrics) == ["algorithm-2-knowledge"]
    model = shipped_model("icons", "algorithm-2")
    stored = SplitFeatures(model, icons, "val", models=tmp_path)
    computed = SplitFeatures(model, icons, "val")
    assert stored.knowledge is not None
    assert computed.knowledge is not None
    assert stored.knowledge.hash == computed.knowledge.hash
    assert stored.learnt_hash(Graft(), 1) == stored.knowledge.hash
    shipped = SplitFeatures(model, icons, "val", models=ICONS).knowledge
    assert shipped is not None
    for name, tensor in shipped.tensors.items():  # other machines round differently
        torch.testing.assert_close(tensor, stored.knowledge.tensors[name], rtol=0.02, atol=2e-3)
    again = base_knowledge(model, icons)
    assert again.hash == stored.knowledge.hash
