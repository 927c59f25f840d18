"""mini-ImageNet and CUB-200 in sessions, from small files of exactly their layouts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewgraft.data.catalogue import add_data
from fewgraft.data.parts import Part, Role
from fewgraft.errors import FewgraftError
from fewgraft.sessions import SessionPools, SessionSettings, draw_sessions

TRAIN, TEST = 12, 4  # pictures of each class


def picture(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (10, 10, 3), np.uint8)
    Image.fromarray(pixels).save(path)


def mini(root: Path) -> list[str]:
    """miniimagenet/ with images, two tables and the lists of shots; the names of the shots."""
    folder = root / "miniimagenet"
    (folder / "split").mkdir(parents=True)
    synsets = [f"n{90000000 - 13 * k}" for k in range(100)]  # not in order
    shots = []
    for half, count in (("train", TRAIN), ("test", TEST)):
        rows = ["filename,label"]
        for k, synset in enumerate(synsets):
            for i in range(count):
                name = f"{synset}{half}{i:08d}.jpg"
                picture(folder / "images" / name, 100 * k + i)
                rows.append(f"{name},{synset}")
        (folder / "split" / f"{half}.csv").write_text("\n".join(rows) + "\n")
    lists = root / "index_list" / "mini_imagenet"
    lists.mkdir(parents=True)
    (lists / "session_1.txt").write_text("")
    for t in range(8):
        own = sorted(synsets)[60 + 5 * t : 65 + 5 * t]
        names = [f"{synset}train{i:08d}.jpg" for synset in own for i in (3, 1, 9)]
        lines = [f"MINI-ImageNet/train/{name[:9]}/{name}" for name in names]
        (lists / f"session_{t + 2}.txt").write_text("\n".join(lines) + "\n")
        shots += names
    return shots


def cub(root: Path) -> None:
    """CUB_200_2011/ with its three lists."""
    folder = root / "CUB_200_2011"
    images, halves, labels, number = [], [], [], 0
    for k in range(200):
        for i in range(6 + k % 2):  # classes differ in size
            number += 1
            name = f"{k + 1:03d}.Bird_{k}/Bird_{k}_{i:04d}.jpg"
            picture(folder / "images" / name, number)
            images.append(f"{number} {name}")
            halves.append(f"{number} {int(i < 4)}")
            labels.append(f"{number} {k + 1}")
    for file, lines in (
        ("images.txt", images),
        ("train_test_split.txt", halves),
        ("image_class_labels.txt", labels),
    ):
        (folder / file).write_text("\n".join(lines) + "\n")


def test_mini_imagenet_in_sessions(tmp_path: Path) -> None:
    shots = mini(tmp_path / "files")
    root = tmp_path / "stores"
    store = add_data("mini-imagenet-sessions", tmp_path / "files", root=root)
    assert store.classes == tuple(sorted(store.classes))
    assert store.manifest.counts == {
        "base/train": 60 * (TRAIN - 1),
        "base/val": 60,
        "base/test": 60 * TEST,
        "novel/test": 40 * (TRAIN + TEST),
    }
    assert store.roles is not None
    assert np.bincount(store.roles).tolist()[1:] == [40 * TEST, len(shots)]
    pools = SessionPools.of(store)
    assert all(len(pools.queries[k]) == TEST for k in range(60, 100))
    settings = SessionSettings(shots=3, unlabelled=1, listed=True)
    draws = draw_sessions(pools, settings, 2)
    assert np.array_equal(np.sort(draws.support[0]), np.sort(draws.support[1]))
    assert (store.roles[draws.support] == Role.LISTED).all()
    assert (store.labels[draws.support[0, 2]] == np.repeat(np.arange(70, 75), 3)).all()


def test_cub_200_in_sessions(tmp_path: Path) -> None:
    cub(tmp_path / "files")
    store = add_data("cub-200-sessions", tmp_path / "files", root=tmp_path / "stores")
    assert len(store.base_classes) == 100
    assert store.classes[100] == "101.Bird_100"
    assert store.manifest.size == 224
    assert len(store.by_class(Part.NOVEL_TEST)) == 100
    pools = SessionPools.of(store)
    assert [len(pools.queries[k]) for k in (100, 101)] == [2, 3], "classes differ in size"
    assert any("no published shots" in note for note in store.manifest.notes)
    draws = draw_sessions(pools, SessionSettings(10, 10, 2, unlabelled=0), 1)
    assert draws.classes.shape == (1, 10, 10)
    with pytest.raises(FewgraftError, match="no published list"):
        draw_sessions(pools, SessionSettings(10, 10, 2, unlabelled=0, listed=True), 1)


def test_a_folder_of_ones_own_in_sessions(tmp_path: Path) -> None:
    for k in range(20):
        for i in range(20):
            picture(tmp_path / "photos" / f"class {k:02}" / f"{i}.png", 100 * k + i)
    store = add_data("photos", tmp_path / "photos", root=tmp_path / "stores")
    pools = SessionPools.of(store, queries=6)
    assert pools.n_base == len(store.base_classes)
    settings = SessionSettings(sessions=2, ways=2, shots=5, unlabelled=4, queries=6)
    draws = draw_sessions(pools, settings, 2)
    novel = set(store.by_class(Part.NOVEL_TEST))
    assert set(draws.classes.flatten().tolist()) <= novel
    assert (store.labels[draws.support[0, 1]] == np.repeat(draws.classes[0, 1], 5)).all()
    trained = store.indices(Part.BASE_TRAIN)
    assert not np.isin(draws.unlabelled, trained).any()


def test_lists_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    cub(tmp_path)
    (tmp_path / "session_2.txt").write_text("CUB_200_2011/images/001.Bird_0/Bird_0_0000.jpg\n")
    with pytest.raises(FewgraftError, match="no training picture of a novel class"):
        add_data("cub-200-sessions", tmp_path)
    labels = tmp_path / "CUB_200_2011" / "image_class_labels.txt"
    labels.write_text("1 1\n")
    with pytest.raises(FewgraftError, match="not of the same pictures"):
        add_data("cub-200-sessions", tmp_path)
    labels.unlink()
    with pytest.raises(FewgraftError, match="does not look like cub-200-sessions"):
        add_data("cub-200-sessions", tmp_path)
