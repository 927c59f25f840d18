"""Photos by class, as features with names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fewgraft.app.features.embedding import Embedded, Embeds, Photo
from fewgraft.app.learning.lesson import places_of
from fewgraft.errors import FewgraftError

Photos = Mapping[str, Sequence[Photo]]


@dataclass(frozen=True)
class Labelled:
    """Features of photos with class names."""

    photos: tuple[Photo, ...]
    names: tuple[str, ...]
    keys: tuple[bytes, ...]
    features: Tensor  # [n, d]

    def of(self, name: str) -> tuple[Photo, ...]:
        """Photos of one class."""
        return tuple(p for p, own in zip(self.photos, self.names, strict=True) if own == name)

    def places(self, classes: Sequence[str]) -> Tensor:
        """Labels [n] as places in `classes`."""
        return places_of(self.names, classes)


def embed_classes(embed: Embeds, classes: Photos, what: str) -> tuple[Labelled, dict[str, str]]:
    """Features of all photos of all classes; a class of which none can be read is an error."""
    photos = [photo for own in classes.values() for photo in own]
    names = [name for name, own in classes.items() for _ in own]
    done = embed(photos, what)
    failures = failures_of(photos, done)
    kept = [(photos[number], names[number]) for number in done.kept]
    usable = {name for _, name in kept}
    for name in classes:
        if name not in usable:
            reasons = {why for number, why in done.failed.items() if names[number] == name}
            raise FewgraftError(
                f"no photo of '{name}' can be used"
                + (f": {'; '.join(sorted(reasons)[:3])}" if reasons else ""),
                "Every class needs at least one photo that can be opened.",
            )
    labelled = Labelled(
        tuple(photo for photo, _ in kept),
        tuple(name for _, name in kept),
        tuple(done.keys),
        done.tensor(),
    )
    return labelled, failures


def failures_of(photos: Sequence[Photo], done: Embedded) -> dict[str, str]:
    """{photo: why it cannot be used}."""
    return {photo_name(photos[number], number): why for number, why in done.failed.items()}


def photo_name(photo: Photo, number: int) -> str:
    """A file's name as given; photos without one are counted."""
    return str(photo) if isinstance(photo, Path) else f"photo {number + 1}"


def refuse_twins(examples: Labelled) -> None:
    """One picture as an example of two classes is a mistake that would spoil both."""
    seen: dict[bytes, tuple[str, str]] = {}
    for number, (name, key) in enumerate(zip(examples.names, examples.keys, strict=True)):
        photo = photo_name(examples.photos[number], number)
        other, twin = seen.setdefault(key, (name, photo))
        if other != name:
            raise FewgraftError(
                f"the same picture is an example of '{other}' and of '{name}': {twin} and {photo}",
                "Take one of them away.",
            )
