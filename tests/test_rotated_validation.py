"""Data without novel/val classes validate on base/val, rotated: sessions need all other classes."""

import numpy as np
import pytest
import torch

from campaign.layouts import cifar_pickles
from fewgraft.data.catalogue import add_data
from fewgraft.data.parts import Part, Role
from fewgraft.data.store import ImageStore, open_store
from fewgraft.episodes import EpisodeSettings, Pools, sample_episodes, split_pictures
from fewgraft.feature_bank import pixels_of
from fewgraft.model import embed_all, new_model
from fewgraft.prototypes import directions
from fewgraft.training.metatrain import _Embedder
from fewgraft.training.recipe import load_recipe


@pytest.fixture(scope="module")
def without(icons: ImageStore) -> ImageStore:
    keep = icons.parts != Part.NOVEL_VAL.code
    return ImageStore(icons.pictures[keep], icons.labels[keep], icons.parts[keep], icons.manifest)


def test_episodes_have_rotated_base_pictures_for_novel_ones(without: ImageStore) -> None:
    n = len(without)
    pools = Pools.of(without, "val")
    assert len(pools.novel) == 3 * 108
    own = set(without.indices(Part.BASE_VAL).tolist())
    assert all(set((p % n).tolist()) <= own and (p >= n).all() for p in pools.novel.values())
    there = set(split_pictures(without, "val").tolist())
    settings = EpisodeSettings.paper("incremental", 1, split="val", queries=5)
    episodes, _ = sample_episodes(pools, settings, 3)
    assert set(episodes.query.flatten().tolist()) <= there
    assert set(episodes.support.flatten().tolist()) <= there
    assert len(there) == 4 * len(own)


def test_other_data_keep_their_episodes(icons: ImageStore) -> None:
    parts = [icons.indices(part) for part in (Part.BASE_VAL, Part.NOVEL_VAL)]
    assert split_pictures(icons, "val").tolist() == np.concatenate(parts).tolist()
    assert set(Pools.of(icons, "val").novel) == set(icons.by_class(Part.NOVEL_VAL))


@pytest.mark.numerical
@pytest.mark.parametrize("moves", ["last-block", "all"])
def test_metatraining_sees_rotated_pictures_as_anyone_does(without: ImageStore, moves: str) -> None:
    model = new_model("resnet12-tiny", without.base_classes, 32, 1, [0.5], [0.5], 0, mirrored=True)
    base = without.indices(Part.BASE_VAL)[:3]
    pictures = np.concatenate([base + quarters * len(without) for quarters in (2, 0, 3, 1)])
    config = load_recipe("icons").metatraining.model_copy(update={"moves": moves})
    embedder = _Embedder(model.eval(), without, config, None)
    with torch.no_grad():
        found = directions(embedder.plain(torch.from_numpy(pictures)))
    expected = directions(embed_all(model, pixels_of(without, pictures)))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_cifar_100_in_sessions(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cifar")
    cifar_pickles(folder)
    root = tmp_path_factory.mktemp("stores")
    store = add_data("cifar-100-sessions", folder, root=root)
    assert len(store.base_classes) == 60
    assert store.manifest.counts == {
        "base/train": 540,
        "base/val": 60,
        "base/test": 600,
        "novel/test": 800,
    }
    assert store.classes == tuple(sorted(store.classes)), "sessions follow the alphabet"
    roles = open_store(root / "cifar-100-sessions").roles
    assert roles is not None
    novel = store.labels >= 60
    assert (roles[~novel] == Role.ANY).all()
    assert np.bincount(roles[novel]).tolist() == [400, 400], "official test pictures test"
    assert any("no published shots" in note for note in store.manifest.notes)
