"""CIFAR-FS: CIFAR-100 divided into 64 base, 16 novel-val and 20 novel-test classes.

Bertinetto et al., "Meta-learning with differentiable closed-form solvers", ICLR 2019. Base test
pictures are the official test pictures; a tenth of the official training pictures of each base
class, by a seeded draw of ours, validates. Novel classes keep all their pictures.

The draw goes by the original file names within a class, so that it takes the same pictures
whatever form the files have.
"""

from collections.abc import Iterator
from pathlib import Path

from fewgraft.data.build import Item, Source
from fewgraft.data.cifar_100 import (
    LAYOUT,
    NATIVE_SIZE,
    Half,
    cifar_halves,
    cifar_notes,
    draw_train_parts,
)
from fewgraft.data.parts import Part
from fewgraft.data.sources import SourceKind, SourceOptions, layout_error, refuse_split
from fewgraft.data.splits import published_home


def _open(path: Path, options: SourceOptions) -> Source:
    refuse_split(KIND, options)
    halves = cifar_halves(path)
    if halves is None:
        raise layout_error(KIND, path)
    train, test = halves
    homes = published_home("cifar-fs")
    classes = sorted(homes, key=lambda name: (homes[name].code, name))
    total = len(train.labels) + len(test.labels)
    return Source(
        kind=KIND.name,
        where=path,
        classes=classes,
        items=_items(train, test, classes, options.seed),
        total=total,
        size=options.size or NATIVE_SIZE,
        channels=1 if options.grey else 3,
        notes=cifar_notes(total, options.seed),
    )


def _items(train: Half, test: Half, classes: list[str], seed: int) -> Iterator[Item]:
    homes = published_home("cifar-fs")
    alphabet = sorted(homes)  # CIFAR-100 numbers its classes by the alphabet
    for half, base_parts in ((train, draw_train_parts(train, seed)), (test, None)):
        for number, picture in enumerate(half.pictures()):
            name = alphabet[half.labels[number]]
            part = homes[name]
            if part.is_base:
                part = base_parts[number] if base_parts else Part.BASE_TEST
            yield Item(picture, classes.index(name), part, f"{name}/{half.names[number]}")


KIND = SourceKind(
    name="cifar-fs",
    summary="CIFAR-100 in 64 base, 16 + 20 novel classes, 32 px",
    layout=LAYOUT,
    open=_open,
)
