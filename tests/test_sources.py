"""Data sets of the paper and folders of one's own, from small files of exactly their layouts."""

import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CIFAR, needs_cifar, noise
from PIL import Image
from test_safe_pickle import Calls

from campaign.layouts import (
    MINI_FILES,
    MINI_TABLES,
    cifar_pickles,
    mini_pickles,
    mini_tables,
    tiered_pairs,
    write_mini,
    write_tiered,
)
from fewgraft.data.arrays import whole_numbers
from fewgraft.data.catalogue import add_data, open_data
from fewgraft.data.parts import PARTS, Part
from fewgraft.data.sources import SourceOptions, source_kinds
from fewgraft.data.splits import (
    draw_base_parts,
    draw_class_parts,
    published_classes,
    tiered_base_pictures,
)
from fewgraft.data.store import ImageStore, verify_store
from fewgraft.errors import FewgraftError

MakeTree = Callable[..., Path]
# What CIFAR-FS holds when it is right: pixels, labels, parts and names of all 60,000 pictures.
CIFAR_FS_CONTENT = "fe62d28030c8ce3b"


def class_counts(store: ImageStore) -> dict[str, int]:
    return {str(part): len(store.by_class(part)) for part in PARTS if store.by_class(part)}


def parts_of(store: ImageStore) -> list[Part]:
    return [PARTS[code] for code in store.parts]


# --- published lists and draws ---


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cifar-fs", {"base/train": 64, "novel/val": 16, "novel/test": 20}),
        ("mini-imagenet", {"base/train": 64, "novel/val": 16, "novel/test": 20}),
        (
            "tiered-imagenet",
            {"base/train": 200, "novel/train": 151, "novel/val": 97, "novel/test": 160},
        ),
    ],
)
def test_published_class_lists(name: str, counts: dict[str, int]) -> None:
    lists = published_classes(name)
    assert {str(part): len(classes) for part, classes in lists.items()} == counts
    everything = [cls for classes in lists.values() for cls in classes]
    assert len(everything) == len(set(everything)), "parts share a class"


def test_published_base_pictures_of_tiered_imagenet() -> None:
    pictures = tiered_base_pictures()
    counts = Counter(pictures.values())
    assert counts == {Part.BASE_TRAIN: 203_751, Part.BASE_VAL: 25_460, Part.BASE_TEST: 25_488}
    base = set(published_classes("tiered-imagenet")[Part.BASE_TRAIN])
    assert {name.split("_")[0] for name in pictures} == base


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10, 101])
def test_drawn_base_parts_have_their_shares(count: int) -> None:
    parts = Counter(draw_base_parts(count, val=0.1, test=0.2, seed=0, label=3))
    assert sum(parts.values()) == count
    if count >= 3:
        assert parts[Part.BASE_VAL] == max(1, round(0.1 * count))
        assert parts[Part.BASE_TEST] == max(1, round(0.2 * count))
    assert parts[Part.BASE_TRAIN] >= 1


def test_draws_depend_on_seed_and_class() -> None:
    def draw(seed: int, label: int) -> list[Part]:
        return draw_base_parts(50, val=0.2, test=0.2, seed=seed, label=label)

    assert draw(0, 1) == draw(0, 1)
    assert draw(0, 1) != draw(1, 1)
    assert draw(0, 1) != draw(0, 2)
    names = [f"class {i}" for i in range(25)]
    assert draw_class_parts(names, 0) == draw_class_parts(names, 0)
    assert draw_class_parts(names, 0) != draw_class_parts(names, 1)


# --- CIFAR-FS ---


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    return add_data("cifar-fs", CIFAR, root=tmp_path_factory.mktemp("stores"))


@needs_cifar
def test_cifar_fs_from_parquet_is_added_and_verified(cifar: ImageStore) -> None:
    verify_store(cifar)
    assert cifar.manifest.content.startswith(CIFAR_FS_CONTENT)
    assert cifar.manifest.counts == {
        "base/train": 64 * 450,
        "base/val": 64 * 50,
        "base/test": 64 * 100,
        "novel/val": 16 * 600,
        "novel/test": 20 * 600,
    }
    for part, a_class in (("base/train", 450), ("base/val", 50), ("novel/test", 600)):
        sizes = {len(pictures) for pictures in cifar.by_class(Part(part)).values()}
        assert sizes == {a_class}
    assert cifar.base_classes == published_classes("cifar-fs")[Part.BASE_TRAIN]
    assert not any("incomplete" in note for note in cifar.manifest.notes)


@needs_cifar
def test_cifar_fs_from_the_original_pickles_is_the_same(cifar: ImageStore, tmp_path: Path) -> None:
    """The pickles are shuffled and hold raw bytes; classes, parts and pixels must agree."""
    import pyarrow.parquet as pq

    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for half in ("train", "test"):
        table = pq.read_table(next(CIFAR.glob(f"{half}*.parquet")))
        order = np.random.default_rng(0).permutation(len(table))
        pictures = [row["bytes"] for row in table["img"].to_pylist()]
        names = [row["path"] for row in table["img"].to_pylist()]
        labels = table["fine_label"].to_pylist()
        content = {
            b"data": np.stack([_raw_row(pictures[i]) for i in order]),
            b"fine_labels": [labels[i] for i in order],
            b"filenames": [names[i].encode() for i in order],
        }
        (folder / half).write_bytes(pickle.dumps(content, protocol=2))
    store = add_data("cifar-fs", tmp_path)
    assert store.manifest.content == cifar.manifest.content


def _raw_row(png: bytes) -> np.ndarray:
    import io

    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    return pixels.transpose(2, 0, 1).reshape(-1)


def test_a_part_of_cifar_is_taken_and_called_incomplete(tmp_path: Path) -> None:
    content = cifar_pickles(tmp_path)
    store = add_data("cifar-fs", tmp_path)
    assert any("incomplete: 2,000 of 60,000" in note for note in store.manifest.notes)
    assert store.manifest.counts["base/val"] == 64
    # Channels come plane by plane in the file, pixel by pixel in a store.
    apple = store.pictures[0]
    assert (apple.transpose(2, 0, 1).reshape(-1) == content["data"][0]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fine_labels": [100] * 1000}, "from 0 to 99"),
        ({"data": np.zeros((1000, 99), np.uint8)}, "3072"),
        ({"data": np.zeros((1000, 3072), np.float32)}, "float32"),
        ({"fine_labels": None}, "cifar-100-python"),
    ],
)
def test_wrong_cifar_pickles_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    content = {**cifar_pickles(tmp_path), **change}
    content = {key: value for key, value in content.items() if value is not None}
    (tmp_path / "test").write_bytes(pickle.dumps(content))
    with pytest.raises(FewgraftError, match=message):
        add_data("cifar-fs", tmp_path)


def test_wrong_parquet_is_refused(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as pq

    for half in ("train", "test"):
        pq.write_table(pyarrow.table({"picture": [1], "label": [2]}), tmp_path / f"{half}.parquet")
    with pytest.raises(FewgraftError, match="picture, label"):
        add_data("cifar-fs", tmp_path)
    (tmp_path / "train.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(FewgraftError, match="not a readable parquet"):
        add_data("cifar-fs", tmp_path)


# --- mini-ImageNet ---


def test_mini_imagenet_from_the_five_pickles(tmp_path: Path) -> None:
    contents = mini_pickles(tmp_path)
    store = add_data("mini-imagenet", tmp_path)
    verify_store(store)
    assert store.manifest.size == 84
    assert class_counts(store) == {
        "base/train": 64,
        "base/val": 64,
        "base/test": 64,
        "novel/val": 16,
        "novel/test": 20,
    }
    for stem, part in MINI_FILES.items():
        content = contents[stem]
        names = {label: name for name, label in content["catname2label"].items()}
        for number, picture in enumerate(store.indices(part)):
            assert (store.pictures[picture] == content["data"][number]).all()
            assert store.classes[store.labels[picture]] == names[content["labels"][number]]


def test_mini_imagenet_pickles_that_are_wrong(tmp_path: Path) -> None:
    contents = mini_pickles(tmp_path)
    cases: list[tuple[Any, str]] = [
        (Calls(len, "hello"), "__builtin__.len"),
        ({"data": 1}, "lacks the keys"),
        ({**contents["val"], "data": np.zeros((32, 84, 84, 3))}, "float64"),
        ({**contents["val"], "labels": [99] * 32}, "not in catname2label"),
        ({**contents["val"], "catname2label": {"n99999999": 0}}, "no class of mini-ImageNet"),
        (contents["test"], "belongs to novel/test, not to novel/val"),
    ]
    for content, message in cases:
        write_mini(tmp_path, "val", content)
        with pytest.raises(FewgraftError, match=message):
            add_data("mini-imagenet", tmp_path)
    (tmp_path / "miniImageNet_category_split_val.pickle").unlink()
    with pytest.raises(FewgraftError, match=r"lacks miniImageNet_category_split_val\.pickle"):
        add_data("mini-imagenet", tmp_path)


def test_mini_imagenet_from_tables_draws_base_val_and_test_and_says_so(tmp_path: Path) -> None:
    mini_tables(tmp_path, MINI_TABLES, a_class=10)
    store = add_data("mini-imagenet", tmp_path, options=SourceOptions(size=16))
    verify_store(store)
    assert store.manifest.counts == {
        "base/train": 64 * 8,
        "base/val": 64,
        "base/test": 64,
        "novel/val": 160,
        "novel/test": 200,
    }
    assert "not comparable" in store.manifest.notes[0]


def test_mini_imagenet_from_tables_with_the_extra_base_pictures(tmp_path: Path) -> None:
    stems = {
        "train": Part.BASE_TRAIN,
        "train_phase_val": Part.BASE_VAL,
        "train_phase_test": Part.BASE_TEST,
        "val": Part.NOVEL_VAL,
        "test": Part.NOVEL_TEST,
    }
    mini_tables(tmp_path, stems, a_class=2)
    store = add_data("mini-imagenet", tmp_path, options=SourceOptions(size=16))
    assert set(store.manifest.counts.values()) == {128, 32, 40}
    assert store.manifest.notes == ()
    (tmp_path / "val.csv").write_text("file,class\n")
    with pytest.raises(FewgraftError, match="header filename,label"):
        add_data("mini-imagenet", tmp_path)


# --- tiered-ImageNet ---


def tiered_classes() -> dict[Part, tuple[str, ...]]:
    return published_classes("tiered-imagenet")


def test_tiered_imagenet_from_class_folders(tmp_path: Path) -> None:
    """Base pictures go where the published list says; a base picture it lacks is left out."""
    lists = tiered_classes()
    listed: dict[str, dict[Part, str]] = {}
    for name, part in tiered_base_pictures().items():
        listed.setdefault(name.split("_")[0], {})[part] = name
    expected = {}
    for part, split in (
        (Part.NOVEL_TRAIN, "train"),
        (Part.NOVEL_VAL, "val"),
        (Part.NOVEL_TEST, "test"),
    ):
        for name in lists[part][:3]:
            expected[f"{split}/{name}/{name}_1.JPEG"] = part
    for name in lists[Part.BASE_TRAIN][:4]:
        expected |= {f"train/{name}/{file}": part for part, file in listed[name].items()}
    for number, path in enumerate([*expected, f"train/{lists[Part.BASE_TRAIN][0]}/other.JPEG"]):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise(number, 90, 100, 3)).save(tmp_path / path)
    store = add_data("tiered-imagenet", tmp_path)
    verify_store(store)
    assert Counter(parts_of(store)) == Counter(expected.values())
    assert store.manifest.size == 84
    assert not store.rehearses_on_base
    assert any("595 of 608 classes are missing" in note for note in store.manifest.notes)


def test_tiered_imagenet_with_renamed_files_draws_and_says_so(tmp_path: Path) -> None:
    lists = tiered_classes()
    for part in lists:
        for name in lists[part][:2]:
            (tmp_path / name).mkdir()
            for number in range(10):
                Image.fromarray(noise(number, 84, 84, 3)).save(tmp_path / name / f"{number}.jpg")
    store = add_data("tiered-imagenet", tmp_path)
    assert store.manifest.counts["base/train"] == 16
    assert store.manifest.counts["base/val"] == store.manifest.counts["base/test"] == 2
    assert any("drawn with seed 0" in note for note in store.manifest.notes)


@pytest.mark.parametrize("form", ["npz", "png"])
def test_tiered_imagenet_from_one_pair_a_part(tmp_path: Path, form: str) -> None:
    wanted = tiered_pairs(tmp_path, form)
    store = add_data("tiered-imagenet", tmp_path)
    verify_store(store)
    assert class_counts(store) == dict.fromkeys(map(str, PARTS), 3)
    for part, pictures in wanted.items():
        assert (store.pictures[store.indices(part)] == pictures).all()
    assert store.manifest.notes == ()


@pytest.mark.parametrize("form", ["npz", "png"])
def test_tiered_imagenet_from_the_usual_pairs_with_names_in_words(
    tmp_path: Path, form: str
) -> None:
    lists = tiered_classes()
    chosen = {
        "train": [*lists[Part.BASE_TRAIN][:3], *lists[Part.NOVEL_TRAIN][:2]],
        "val": list(lists[Part.NOVEL_VAL][:2]),
        "test": list(lists[Part.NOVEL_TEST][:2]),
    }
    synsets = [name for names in chosen.values() for name in names]
    words = {synset: f"thing, number {i}" for i, synset in enumerate(synsets)}
    words[chosen["test"][0]] = words[chosen["val"][0]]  # one word for two classes, in two parts
    (tmp_path / "synsets.txt").write_text("\n".join(synsets) + "\n")
    (tmp_path / "class_names.txt").write_text("\n".join(words[s] for s in synsets) + "\n")
    for seed, (stem, names) in enumerate(chosen.items()):
        write_tiered(tmp_path, stem, [words[name] for name in names], 10, form, seed)
    store = add_data("tiered-imagenet", tmp_path)
    verify_store(store)
    assert set(store.classes) == set(synsets)
    assert store.manifest.counts == {
        "base/train": 24,
        "base/val": 3,
        "base/test": 3,
        "novel/train": 20,
        "novel/val": 20,
        "novel/test": 20,
    }
    assert "drawn with seed 0" in store.manifest.notes[0]
    (tmp_path / "synsets.txt").unlink()
    with pytest.raises(FewgraftError, match=r"synsets\.txt"):
        add_data("tiered-imagenet", tmp_path)


def test_wrong_tiered_files_are_refused(tmp_path: Path) -> None:
    lists = tiered_classes()
    tiered_pairs(tmp_path, "npz")
    write_tiered(tmp_path, "val", list(lists[Part.NOVEL_TEST][:3]), 2, "npz", 0)
    with pytest.raises(FewgraftError, match="belongs to novel/test"):
        add_data("tiered-imagenet", tmp_path)
    whole = (tmp_path / "val_images.npz").read_bytes()
    (tmp_path / "val_images.npz").write_bytes(whole[:1000])
    with pytest.raises(FewgraftError, match=r"val_images\.npz"):
        add_data("tiered-imagenet", tmp_path)
    np.savez(tmp_path / "val_images.npz", images=np.zeros((6, 84, 84, 3), np.float32))
    with pytest.raises(FewgraftError, match="float32"):
        add_data("tiered-imagenet", tmp_path)
    np.savez(tmp_path / "val_images.npz", images=np.zeros((5, 84, 84, 3), np.uint8))
    with pytest.raises(FewgraftError, match="same number"):
        add_data("tiered-imagenet", tmp_path)


# --- folders ---


def test_a_folder_is_divided_by_a_seeded_draw_of_classes(make_tree: MakeTree) -> None:
    root = make_tree(classes=20, pictures=20)
    store = add_data("my photos", root)
    verify_store(store)
    assert class_counts(store) == {
        "base/train": 12,
        "base/val": 12,
        "base/test": 12,
        "novel/val": 3,
        "novel/test": 5,
    }
    again = add_data("again", root)
    other = add_data("other", root, options=SourceOptions(seed=1))
    assert again.manifest.content == store.manifest.content
    assert other.classes != store.classes
    assert open_data("my photos").manifest.size == 84


def test_a_toml_split_is_followed(make_tree: MakeTree, tmp_path: Path) -> None:
    split = tmp_path / "split.toml"
    split.write_text(
        'base = ["class 00", "class 03"]\n"novel/train" = ["class 01"]\n'
        '"novel/val" = ["class 02"]\n"novel/test" = ["class 04", "class 05"]\n'
    )
    store = add_data("photos", make_tree(classes=7), options=SourceOptions(split=split))
    homes = {str(p): [store.classes[c] for c in store.by_class(p)] for p in PARTS}
    assert homes["base/test"] == ["class 00", "class 03"]
    assert homes["novel/train"] == ["class 01"]
    assert homes["novel/test"] == ["class 04", "class 05"]
    assert store.manifest.notes == ("1 classes are not named in the split and were left out",)


def test_csv_splits_by_class_and_by_picture(make_tree: MakeTree, tmp_path: Path) -> None:
    root = make_tree(classes=3, pictures=4)
    split = tmp_path / "split.csv"
    split.write_text("class,part\nclass 00,base\nclass 01,novel/val\nclass 02,novel/test\n")
    store = add_data("photos", root, options=SourceOptions(split=split))
    assert store.manifest.counts["novel/test"] == 4
    split.write_text(
        "picture,part\n"
        "class 00/photo 0.png,base/train\nclass 00/photo 1.png,base/test\n"
        "class 02/photo 3.png,novel/test\n"
    )
    store = add_data("photos", root, options=SourceOptions(split=split, size=10))
    assert parts_of(store) == [Part.BASE_TRAIN, Part.BASE_TEST, Part.NOVEL_TEST]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = ["class 0"]', "Did you mean 'class 0"),
        ('base = ["class 00"]\n"novel/val" = ["class 00"]', "twice"),
        ('bass = ["class 00"]', "Did you mean 'base'"),
        ('base = "class 00"', "must be a list"),
        ("base = [", "not a readable split"),
    ],
)
def test_wrong_toml_splits(make_tree: MakeTree, tmp_path: Path, text: str, message: str) -> None:
    split = tmp_path / "split.toml"
    split.write_text(text)
    with pytest.raises(FewgraftError, match=message):
        add_data("photos", make_tree(), options=SourceOptions(split=split))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class,part\nclass 00,novel/tset\n", "novel/test"),
        ("class,part\nclass 00,base\nclass 00,base\n", "twice"),
        ("picture,part\nclass 00/photo 0.png,base\n", "whole part"),
        ("picture,part\nclass 00/photo 99.png,base/train\n", "no such picture"),
        ("name,home\n", "header home, name"),
        ("", "header"),
    ],
)
def test_wrong_csv_splits(make_tree: MakeTree, tmp_path: Path, text: str, message: str) -> None:
    split = tmp_path / "split.csv"
    split.write_text(text)
    with pytest.raises(FewgraftError, match=message):
        add_data("photos", make_tree(), options=SourceOptions(split=split))


def test_sources_that_are_not_there_or_not_what_they_should_be(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for kind in source_kinds():
        with pytest.raises(FewgraftError, match="does not exist"):
            add_data("x", tmp_path / "gone", kind)
        for path in (tmp_path / "empty", tmp_path / "file"):
            with pytest.raises(FewgraftError):
                add_data("x", path, kind)
    with pytest.raises(FewgraftError, match="Did you mean 'cifar-fs'"):
        add_data("x", tmp_path, "cifar-sf")
    with pytest.raises(FewgraftError, match="8 to 1024"):
        add_data("x", tmp_path, options=SourceOptions(size=3))


@pytest.mark.parametrize("kind", ["cifar-fs", "mini-imagenet", "tiered-imagenet"])
def test_a_published_set_takes_no_split_of_ones_own(tmp_path: Path, kind: str) -> None:
    with pytest.raises(FewgraftError, match="published parts"):
        add_data(kind, tmp_path, options=SourceOptions(split=tmp_path / "split.toml"))


def test_grey_stores_have_one_channel(make_tree: MakeTree) -> None:
    store = add_data("photos", make_tree(), options=SourceOptions(grey=True, size=16))
    assert store.pictures.shape[1:] == (16, 16, 1)


@pytest.mark.parametrize("labels", [["a" * 100_000] + ["b"] * 10_000, [[1]], [1.5], [None]])
def test_labels_are_whole_numbers(labels: list[object]) -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        whole_numbers(labels)
