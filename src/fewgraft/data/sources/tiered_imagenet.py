"""tiered-ImageNet: 200 base classes and 151 + 97 + 160 novel ones, apart by superclass, at 84 px.

Ren et al., "Meta-learning for semi-supervised few-shot classification", ICLR 2018; base and novel
training classes and the base pictures of Ren et al., "Incremental few-shot learning with attention
attractor networks", NeurIPS 2019.

Three forms are read: class folders of JPEGs; one file pair a part as the incremental line of work
writes them (train_a_train_a_phase_{train,val,test}, train_b, val, test); and the usual three pairs
(train, val, test), where the picture names are lost and base val and test are therefore drawn.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewgraft.data.arrays import as_array, whole_numbers
from fewgraft.data.build import Item, Source
from fewgraft.data.npz import npz_rows, npz_shape
from fewgraft.data.parts import Part
from fewgraft.data.pictures import Pixels
from fewgraft.data.safe_pickle import load_plain_pickle
from fewgraft.data.sources import SourceKind, SourceOptions, layout_error, refuse_split
from fewgraft.data.splits import (
    draw_base_parts,
    published_classes,
    published_home,
    tiered_base_pictures,
)
from fewgraft.errors import FewgraftError, reading
from fewgraft.files import readable
from fewgraft.parsing import read_text

NATIVE_SIZE = 84
SHARE = 0.1  # of base pictures that validate, and that test, as in the published list
EXACT_STEMS = {
    "train_a_train_a_phase_train": Part.BASE_TRAIN,
    "train_a_train_a_phase_val": Part.BASE_VAL,
    "train_a_train_a_phase_test": Part.BASE_TEST,
    "train_b": Part.NOVEL_TRAIN,
    "val": Part.NOVEL_VAL,
    "test": Part.NOVEL_TEST,
}
USUAL_STEMS = ("train", "val", "test")


def _open(path: Path, options: SourceOptions) -> Source:
    refuse_split(KIND, options)
    folders = _class_folders(path)
    if folders:
        items, notes = _folder_items(folders, options.seed)
    else:
        items, notes = _packed_items(path, options.seed)
    return Source(
        kind=KIND.name,
        where=path,
        classes=_classes(),
        items=items.stream,
        total=items.total,
        size=options.size or NATIVE_SIZE,
        channels=1 if options.grey else 3,
        notes=notes,
    )


@dataclass(frozen=True)
class _Items:
    stream: Iterator[Item]
    total: int


def _classes() -> list[str]:
    return [name for names in published_classes("tiered-imagenet").values() for name in names]


def _labels() -> dict[str, int]:
    return {name: label for label, name in enumerate(_classes())}


# --- class folders ---


def _class_folders(path: Path) -> dict[str, Path]:
    """{class: folder} wherever the usual trees keep them: here, or under train/, val/, test/."""
    homes = published_home("tiered-imagenet")
    places = [path, *(path / stem for stem in USUAL_STEMS)]
    return {
        folder.name: folder
        for place in places
        if place.is_dir()
        for folder in sorted(place.iterdir())
        if folder.is_dir() and folder.name in homes
    }


def _folder_items(folders: dict[str, Path], seed: int) -> tuple[_Items, tuple[str, ...]]:
    homes, labels = published_home("tiered-imagenet"), _labels()
    items: list[tuple[Path, int, Part]] = []
    notes: Counter[str] = Counter()
    for name in sorted(folders, key=labels.__getitem__):
        files = sorted(f for f in folders[name].iterdir() if f.is_file() and f.name[0] != ".")
        parts: list[Part | None] = [homes[name]] * len(files)
        if homes[name].is_base:
            parts = _base_parts(files, labels[name], seed, notes)
        items += [(f, labels[name], p) for f, p in zip(files, parts, strict=True) if p]
    missing = len(labels) - len(folders)
    if missing:
        notes[f"incomplete: {missing} of {len(labels)} classes are missing"] = 1
    stream = (
        Item(file, label, part, readable(Path(file.parent.name, file.name)))
        for file, label, part in items
    )
    return _Items(stream, len(items)), tuple(notes)


def _base_parts(files: list[Path], label: int, seed: int, notes: Counter[str]) -> list[Part | None]:
    """Parts by the published list of file names, or by a draw where the files were renamed."""
    published = tiered_base_pictures()
    parts = [published.get(f"{file.stem}.JPEG") for file in files]
    if any(parts):
        return parts
    notes[_drawn_note(seed)] += 1
    return list(draw_base_parts(len(files), val=SHARE, test=SHARE, seed=seed, label=label))


def _drawn_note(seed: int) -> str:
    return (
        f"base val and test: a tenth each of the base pictures, drawn with seed {seed}, because "
        "the published list goes by file names that are lost here"
    )


# --- files of many pictures ---


@dataclass(frozen=True)
class _Pack:
    """One pair of files: pictures as PNG bytes (.pkl) or as an array (.npz), and their labels."""

    pictures: Path
    names: list[str]  # class of each label
    labels: NDArray[np.int64]

    def stream(self) -> Iterator[bytes | Pixels]:
        if self.pictures.suffix == ".npz":
            for row in npz_rows(self.pictures, "images"):
                yield row[:, :, ::-1]  # these arrays were decoded as blue, green, red
        else:
            pictures = load_plain_pickle(self.pictures)
            with reading(self.pictures, "file of tiered-ImageNet"):
                if len(pictures) != len(self.labels):
                    raise ValueError(f"{len(pictures)} pictures and {len(self.labels)} labels")
                for picture in pictures:
                    yield _packed(picture)


def _packed(picture: Any) -> bytes:
    """The bytes of a picture file, which are kept as an array [n]."""
    if isinstance(picture, bytes):
        return picture
    content = as_array(picture)
    if content.dtype != np.uint8:
        raise ValueError(f"a picture is {content.dtype} {content.shape}, not bytes")
    return content.tobytes()


def _packed_items(path: Path, seed: int) -> tuple[_Items, tuple[str, ...]]:
    exact = {stem: _find_pack(path, stem) for stem in EXACT_STEMS}
    usual = {stem: _find_pack(path, stem) for stem in USUAL_STEMS}
    if all(exact.values()):
        packs: list[tuple[_Pack, Part | None]] = [
            (pack, EXACT_STEMS[stem]) for stem, pack in exact.items() if pack
        ]
        notes: tuple[str, ...] = ()
    elif all(usual.values()):
        packs = [(pack, None) for pack in usual.values() if pack]
        notes = (_drawn_note(seed),)
    else:
        raise layout_error(KIND, path)
    total = sum(len(pack.labels) for pack, _ in packs)
    stream = (item for pack, part in packs for item in _pack_items(pack, part, seed))
    return _Items(stream, total), notes


def _pack_items(pack: _Pack, part: Part | None, seed: int) -> Iterator[Item]:
    """`part` None: the class says which part, and base pictures are divided by a draw."""
    labels = _labels()
    parts = _checked_parts(pack, part, seed)
    for number, (picture, label) in enumerate(
        zip(pack.stream(), pack.labels.tolist(), strict=True)
    ):
        origin = f"{pack.pictures.name}, picture {number}"
        yield Item(picture, labels[pack.names[label]], parts[number], origin)


def _checked_parts(pack: _Pack, part: Part | None, seed: int) -> list[Part]:
    homes, labels = published_home("tiered-imagenet"), _labels()
    parts = [homes[pack.names[label]] for label in pack.labels.tolist()]
    for position, name in enumerate(pack.names):
        if part and homes[name] is not (Part.BASE_TRAIN if part.is_base else part):
            raise FewgraftError(
                f"{pack.pictures}: class {name} belongs to {homes[name]}, not {part}"
            )
        if not part and homes[name].is_base:
            own = np.flatnonzero(pack.labels == position).tolist()
            drawn = draw_base_parts(len(own), SHARE, SHARE, seed, labels[name])
            for number, home in zip(own, drawn, strict=True):
                parts[number] = home
    return [part] * len(parts) if part else parts


def _find_pack(path: Path, stem: str) -> _Pack | None:
    labels = path / f"{stem}_labels.pkl"
    choices = (path / f"{stem}_images_png.pkl", path / f"{stem}_images.npz")
    pictures = next((file for file in choices if file.is_file()), None)
    if pictures is None or not labels.is_file():
        return None
    content = load_plain_pickle(labels)
    if (
        not isinstance(content, dict)
        or not {"label_specific", "label_specific_str"} <= content.keys()
    ):
        raise FewgraftError(f"{labels} lacks the keys label_specific and label_specific_str")
    with reading(labels, "file of tiered-ImageNet"):
        numbers = whole_numbers(content["label_specific"])
        listed = list(content["label_specific_str"])
        if len(listed) > len(_classes()):
            raise ValueError(f"it names {len(listed):,} classes")
        names = [_synset(_as_text(name), stem, path) for name in listed]
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(names):
            raise ValueError(f"its labels run beyond the {len(names)} class names")
    if pictures.suffix == ".npz" and npz_shape(pictures, "images")[0] != len(numbers):
        raise FewgraftError(f"{pictures} and {labels} do not hold the same number of pictures")
    return _Pack(pictures, names, numbers)


def _as_text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _synset(name: str, stem: str, path: Path) -> str:
    """The synset of a class that may be named in words, which two text files translate."""
    homes = published_home("tiered-imagenet")
    if name in homes:
        return name
    words, synsets = path / "class_names.txt", path / "synsets.txt"
    if not (words.is_file() and synsets.is_file()):
        raise FewgraftError(
            f"{path}: '{name}' is no synset, and there is no class_names.txt with synsets.txt "
            "beside it to translate it",
            "Both files come with the usual tiered-ImageNet archive: put them into this folder.",
        )
    with reading(path, "folder whose class_names.txt and synsets.txt belong together"):
        lines = [read_text(file).splitlines() for file in (words, synsets)]
        pairs = list(zip(*lines, strict=True))
    allowed = _homes_of(stem)
    found = [s.strip() for w, s in pairs if w.strip() == name and homes.get(s.strip()) in allowed]
    if len(found) != 1:
        raise FewgraftError(
            f"{path}: '{name}' stands for {len(found)} classes of '{stem}', not one"
        )
    return str(found[0])


def _homes_of(stem: str) -> set[Part]:
    """Where classes of a file may belong: two classes share a name ('crane') across parts."""
    if stem == "train":
        return {Part.BASE_TRAIN, Part.NOVEL_TRAIN}
    part = EXACT_STEMS[stem]
    return {Part.BASE_TRAIN if part.is_base else part}


KIND = SourceKind(
    name="tiered-imagenet",
    summary="tiered-ImageNet in 200 base, 151 + 97 + 160 novel classes, 84 px",
    layout="class folders of JPEGs named by synset (here or under train/, val/, test/), or pairs "
    "{train,val,test}_labels.pkl with _images_png.pkl or _images.npz, or the same pairs for "
    "train_a_train_a_phase_{train,val,test}, train_b, val and test.",
    open=_open,
)
