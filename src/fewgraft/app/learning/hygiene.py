"""What people bring, put in order: no picture counts twice, and none teaches and judges at once.

Pictures are told apart by their content, so that renamed copies are found. What was done, and what
looks like a mistake but may be meant, is said in notes.
"""

from collections.abc import Container, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fewgraft.app.features.cache import Features
from fewgraft.app.features.embedding import Embedded
from fewgraft.app.features.labelled import Labelled
from fewgraft.app.learning.judging import Judged
from fewgraft.app.learning.lesson import PART
from fewgraft.app.learning.names import called_unknown, names_alike
from fewgraft.html import counted


@dataclass(frozen=True)
class Material:
    """What a lesson is learnt from and judged by; a picture is in one place, and there once."""

    examples: Labelled
    check: Labelled
    pictures: Embedded  # unlabelled
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, examples: Labelled, check: Labelled, pictures: Embedded) -> "Material":
        """Each picture once: as an example rather than to check with, and labelled rather than not.

        A check photo that is an example would be answered by heart. One that is unlabelled as well
        would teach what it is to judge, and its class is known.
        """
        notes: list[str] = []
        examples = once(examples, "new photo", notes)
        taught = dict(zip(examples.keys, examples.names, strict=True))
        check = _without_examples(once(check, "check photo", notes), taught, notes)
        pictures = _unlabelled_alone(pictures, taught, set(check.keys), notes)
        return cls(examples, check, pictures, tuple(notes))


def once(labelled: Labelled, what: str, notes: list[str]) -> Labelled:
    """Each picture once in a class; in two classes it stays, for others to judge."""
    rows = _first(list(zip(labelled.keys, labelled.names, strict=True)))
    copies = len(labelled.keys) - len(rows)
    if copies:
        notes.append(f"{_are(copies, what, 'a copy', 'copies')} of another: not counted again")
    return _chosen(labelled, rows)


def _without_examples(check: Labelled, taught: dict[bytes, str], notes: list[str]) -> Labelled:
    rows = [row for row, key in enumerate(check.keys) if key not in taught]
    gone = len(check.keys) - len(rows)
    if gone:
        notes.append(
            f"{_are(gone, 'check photo', 'an example', 'examples')} as well: left out "
            "of the check, which needs photos that were not learnt"
        )
    pairs = zip(check.keys, check.names, strict=True)
    for name, other in sorted({(n, taught[k]) for k, n in pairs if taught.get(k, n) != n}):
        notes.append(f"a photo is labelled '{name}' to check with and '{other}' to learn from")
    return _chosen(check, rows)


def _unlabelled_alone(
    pictures: Embedded, taught: Container[bytes], checked: Container[bytes], notes: list[str]
) -> Embedded:
    """Unlabelled pictures, each once, without those that have a label elsewhere."""
    keys = pictures.keys
    rows = _first(keys)
    copies = len(keys) - len(rows)
    examples = sum(keys[row] in taught for row in rows)
    judges = sum(keys[row] in checked for row in rows)
    for count, one, many in (
        (examples, "an example as well", "examples as well"),
        (judges, "a check photo as well", "check photos as well"),
        (copies, "a copy of another", "copies of others"),
    ):
        if count:
            notes.append(f"{_are(count, 'photo', one, many, ' of the pile')}: taken out of it")
    rows = [row for row in rows if keys[row] not in taught and keys[row] not in checked]
    if len(rows) == len(keys):
        return pictures
    return replace(
        pictures,
        features=_rows(pictures.features, rows),
        kept=[pictures.kept[row] for row in rows],
        keys=[keys[row] for row in rows],
    )


def _first(keys: Sequence[Hashable]) -> list[int]:
    """Places where a key comes for the first time."""
    places: dict[Hashable, int] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, place)
    return list(places.values())


def _chosen(labelled: Labelled, rows: list[int]) -> Labelled:
    return Labelled(
        tuple(labelled.photos[row] for row in rows),
        tuple(labelled.names[row] for row in rows),
        tuple(labelled.keys[row] for row in rows),
        labelled.features[rows],
    )


def _rows(features: Features, rows: list[int]) -> Features:
    """Some rows, in their order; those of a file move up in it: memory may not hold them all."""
    if not isinstance(features, np.memmap):
        return features[rows]
    for start in range(0, len(rows), PART):
        some = rows[start : start + PART]
        features[start : start + len(some)] = features[some]
    return features[: len(rows)]


def _are(count: int, noun: str, one: str, many: str, where: str = "") -> str:
    """1 photo of the pile is a copy; 2 photos of the pile are copies."""
    return f"1 {noun}{where} is {one}" if count == 1 else f"{count} {noun}s{where} are {many}"


def warnings_of(known: Sequence[str], taught: Sequence[str], left_out: Judged) -> list[str]:
    """What may be meant but rarely is: names that are nearly the same, and nothing right."""
    notes = [*names_alike(known, taught), *called_unknown(taught)]
    if left_out.after and not left_out.right_after:
        notes.append(
            f"of {counted(len(left_out.photos), 'new photo')}, none was recognised when left out "
            "(0 %): photos of a class have little in common, or labels are mixed up"
        )
    return notes
