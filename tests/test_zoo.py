"""The models that ship load, are small, know the data they come with, and are as good as told."""

from pathlib import Path

import pytest
import torch
from conftest import CIFAR, needs_cifar

from fewgraft import zoo
from fewgraft.data.catalogue import add_data
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.methods import methods
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.metrics import paired
from fewgraft.model import weights_hash
from fewgraft.pieces import load_pieces
from fewgraft.split_features import SplitFeatures
from fewgraft.zoo import CHECKOUT_ZOO, IN_SOURCE_TREE, ZOO, shipped_model, stage_model

REFINED = PrototypeRefinement(steps=5)
STAGES = ("pre-trained", "algorithm-1", "algorithm-2")
ENDINGS = ("json", "safetensors")


@pytest.mark.parametrize("stage", STAGES)
def test_icons_models_load_and_fit_the_embedded_data(icons: ImageStore, stage: str) -> None:
    model = shipped_model("icons", stage)
    assert model.card.stage == stage
    assert model.card.classes == icons.base_classes
    assert model.card.data == f"icons {icons.manifest.content[:16]}"
    assert model.card.licence == "Apache-2.0"
    assert model.card.recipe["name"] == "icons"


def test_icons_models_are_small() -> None:
    files = [path for path in Path(ZOO, "icons").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 8_000_000
    kinds = {f"{what}.{ending}" for what in ("model", "pieces", "knowledge") for ending in ENDINGS}
    assert {path.name for path in files} == kinds


# Not learnt yet.
NOT_SHIPPED: dict[str, tuple[str, ...]] = {"icons": (), "cifar-fs": ("cec", "dpgn")}


@pytest.mark.parametrize("folder", [ZOO / "icons", CHECKOUT_ZOO / "cifar-fs"])
@pytest.mark.parametrize("shots", [1, 5])
def test_what_methods_have_learnt_ships_with_its_model(folder: Path, shots: int) -> None:
    learners = [spec for spec in methods().values() if spec.method.pieces]
    for spec in learners:
        if spec.method.pieces in NOT_SHIPPED[folder.name]:
            continue
        pieces = load_pieces(folder, spec.method.pieces, shots)
        assert pieces.card.stage == spec.stage
        assert pieces.card.weights == weights_hash(stage_model(folder, spec.stage))
        assert pieces.card.settings.keys() >= {"steps", "novel", "seed"}


def test_what_incremental_methods_have_learnt_is_small() -> None:
    """On both data sets together."""
    pieces = {s.method.pieces for s in methods().values() if s.stage == "pre-trained"} - {""}
    files = [
        path
        for folder in (ZOO / "icons", CHECKOUT_ZOO / "cifar-fs")
        for name in pieces
        for path in folder.glob(f"{name}-[15]-shot/*")
    ]
    assert {path.name for path in files} == {"pieces.json", "pieces.safetensors"}
    assert sum(path.stat().st_size for path in files) < 3_000_000


@pytest.mark.numerical
def test_the_shipped_models_do_what_the_docs_say(icons: ImageStore) -> None:
    """On 150 test episodes: good base accuracy; refined, Algorithm 2 is above Algorithm 1."""
    first, second = (SplitFeatures(shipped_model("icons", s), icons) for s in STAGES[1:])
    assert first.base_accuracy() > 0.8
    for shots in (1, 5):
        a, b = (m.evaluate(REFINED, "s2i", shots, 150) for m in (second, first))
        for metric in ("acc", "delta"):
            difference = paired(getattr(a, metric), getattr(b, metric)).difference
            assert difference.mean > 0
            assert difference.excludes_zero


def test_a_model_that_does_not_ship_or_does_not_fit(icons: ImageStore) -> None:
    with pytest.raises(FewgraftError, match="icons/algorithm-2"):
        shipped_model("icons", "algorithm-3")
    model = shipped_model("icons", "pre-trained")
    model.card = model.card.model_copy(update={"classes": ("a", "b")})
    with pytest.raises(FewgraftError, match="other base classes"):
        SplitFeatures(model, icons)


def test_the_models_beside_the_package_are_those_that_messages_name() -> None:
    assert tuple(path.name for path in sorted(CHECKOUT_ZOO.iterdir())) == IN_SOURCE_TREE


def test_without_a_source_tree_it_is_said_where_models_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zoo, "CHECKOUT_ZOO", tmp_path / "nowhere")
    with pytest.raises(FewgraftError, match="SOURCE/zoo/cifar-fs") as error:
        zoo.models_folder("cifar-fs")
    assert "fewgraft train cifar-fs" in error.value.hint
    assert "nowhere" not in str(error.value)
    with pytest.raises(FewgraftError, match="fewgraft train mini-imagenet") as error:
        zoo.models_folder("mini-imagenet")
    assert "zoo" not in error.value.hint


# --- CIFAR-100, beside the package ---

CIFAR_CLASSES = {"cifar-fs": 64, "cifar-100-sessions": 60}


@pytest.mark.parametrize("name", CIFAR_CLASSES)
@pytest.mark.parametrize("stage", STAGES)
def test_cifar_models_load(name: str, stage: str) -> None:
    model = stage_model(CHECKOUT_ZOO / name, stage)
    assert model.card.stage == stage
    assert len(model.card.classes) == CIFAR_CLASSES[name]
    assert model.card.backbone == "resnet12-narrow"
    assert model.card.recipe["name"] == name
    pictures = torch.zeros(2, 32, 32, 3, dtype=torch.uint8)
    with torch.no_grad():
        assert model(model.prepare(pictures)).shape == (2, CIFAR_CLASSES[name])


@pytest.mark.parametrize("name", CIFAR_CLASSES)
def test_cifar_models_are_small(name: str) -> None:
    files = [path for path in (CHECKOUT_ZOO / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 18_000_000


@pytest.mark.parametrize("pieces", ["cec", "lwof"])
def test_what_methods_have_learnt_for_sessions_ships(pieces: str) -> None:
    folder = CHECKOUT_ZOO / "cifar-100-sessions"
    found = load_pieces(folder, pieces, 5)
    assert found.card.weights == weights_hash(stage_model(folder, "pre-trained"))


@needs_cifar
@pytest.mark.slow
def test_cifar_models_do_what_the_docs_say() -> None:
    store = add_data("cifar-fs", CIFAR)
    first, second = (stage_model(CHECKOUT_ZOO / "cifar-fs", s) for s in STAGES[1:])
    assert first.card.data == f"cifar-fs {store.manifest.content[:16]}"
    baseline, proposed = (SplitFeatures(m, store, "val") for m in (first, second))
    assert baseline.base_accuracy() > 0.7
    for shots in (1, 5):
        a, b = (m.evaluate(REFINED, "s2i", shots, 150) for m in (proposed, baseline))
        for metric in ("acc", "delta"):
            difference = paired(getattr(a, metric), getattr(b, metric)).difference
            assert difference.mean > 0
            assert difference.excludes_zero
