"""CIFAR-100 in sessions: 60 base classes, then 40 novel ones, five at a time, by the alphabet.

Tao et al., "Few-shot class-incremental learning", CVPR 2020. Base test pictures are the official
test pictures. A tenth of the official training pictures of each base class, by a seeded draw of
ours, is held back from training: it validates, and it is what unlabelled sets show of base classes.
Novel classes keep all their pictures; their official test pictures have the role of queries.

The published shots are official places 304, 340, 47, 67 and 479 of each class. The original files
tell the official order; there the rule is applied and checked against the published list. A copy in
parquet has another order, so that it has no published shots.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewgraft.data.build import Item, Source
from fewgraft.data.cifar_100 import (
    LAYOUT,
    NATIVE_SIZE,
    Half,
    cifar_halves,
    cifar_notes,
    draw_train_parts,
)
from fewgraft.data.parts import Part, Role
from fewgraft.data.sources import SourceKind, SourceOptions, layout_error, refuse_split
from fewgraft.data.splits import published_home, published_shots
from fewgraft.errors import FewgraftError

N_BASE, OFFICIAL = 60, 50_000  # base classes; pictures of the official training half
PLACES = (304, 340, 47, 67, 479)  # of the published shots within each class, in official order


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
        notes=(*cifar_notes(total, options.seed), _told(train)),
    )


def _items(train: Half, test: Half, seed: int) -> Iterator[Item]:
    homes = published_home(KIND.name)
    alphabet = sorted(homes)  # CIFAR-100 numbers its classes so, and sessions follow the numbers
    listed = _listed(train)
    for half, base_parts in ((train, draw_train_parts(train, seed)), (test, None)):
        for number, picture in enumerate(half.pictures()):
            label = int(half.labels[number])
            part, role = homes[alphabet[label]], Role.QUERY if base_parts is None else Role.ANY
            if part.is_base:
                part, role = base_parts[number] if base_parts else Part.BASE_TEST, Role.ANY
            elif base_parts and number in listed:
                role = Role.LISTED
            yield Item(picture, label, part, f"{alphabet[label]}/{half.names[number]}", role)


def _told(train: Half) -> str:
    if _is_official(train):
        return "the published shots are there: fewgraft bench sessions --listed"
    return "no published shots: only the original cifar-100-python files tell their order"


def _is_official(train: Half) -> bool:
    return train.official is not None and len(train.official) == OFFICIAL


def _listed(train: Half) -> set[int]:
    """Where the published shots are in the half; none where the official order is not known."""
    if train.official is None or not _is_official(train):
        return set()
    places = listed_places(train.labels, train.official)
    alphabet = sorted(published_home(KIND.name))
    for label, found in places.items():
        if train.official[found].tolist() != published_shots(KIND.name)[alphabet[label]]:
            raise FewgraftError(
                f"the official order of class '{alphabet[label]}' is not the published one",
                "Use the original cifar-100-python files, as they were unpacked.",
            )
    return {int(place) for found in places.values() for place in found}


def listed_places(
    labels: NDArray[np.int64], official: NDArray[np.int64]
) -> dict[int, NDArray[np.int64]]:
    """{novel label: places of its published shots among all pictures}, by the rule of places."""
    found = {}
    for label in range(N_BASE, 100):
        own = np.flatnonzero(labels == label)
        by_official = own[np.argsort(official[own])]
        found[label] = by_official[list(PLACES)]
    return found


KIND = SourceKind(
    name="cifar-100-sessions",
    summary="CIFAR-100 in 60 base classes and 40 novel ones for sessions, 32 px",
    layout=LAYOUT,
    open=_open,
)
