"""CIFAR-100 in sessions: 60 base classes, then 40 novel ones, five at a time, by the alphabet.

Tao et al., "Few-shot class-incremental learning", CVPR 2020. Base test pictures are the official
test pictures. A tenth of the official training pictures of each base class, by a seeded draw of
ours, is held back from training: it validates, and it is what unlabelled sets show of base classes.
Novel classes keep all their pictures.
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
    total = len(train.labels) + len(test.labels)
    return Source(
        kind=KIND.name,
        where=path,
        classes=sorted(published_home(KIND.name)),
        items=_items(train, test, options.seed),
        total=total,
        size=options.size or NATIVE_SIZE,
        channels=1 if options.grey else 3,
        notes=cifar_notes(total, options.seed),
    )


def _items(train: Half, test: Half, seed: int) -> Iterator[Item]:
    homes = published_home(KIND.name)
    alphabet = sorted(homes)  # CIFAR-100 numbers its classes so, and sessions follow the numbers
    for half, base_parts in ((train, draw_train_parts(train, seed)), (test, None)):
        for number, picture in enumerate(half.pictures()):
            label = int(half.labels[number])
            part = homes[alphabet[label]]
            if part.is_base:
                part = base_parts[number] if base_parts else Part.BASE_TEST
            yield Item(picture, label, part, f"{alphabet[label]}/{half.names[number]}")


KIND = SourceKind(
    name="cifar-100-sessions",
    summary="CIFAR-100 in 60 base classes and 40 novel ones for sessions, 32 px",
    layout=LAYOUT,
    open=_open,
)
