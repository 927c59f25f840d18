"""ImageStore: pictures as one array of bytes on disk, with labels, parts and a manifest.

    NAME/pictures.npy   uint8 [n, size, size, channels], read through a memory map
    NAME/labels.npy     int32 [n], positions in the manifest's class list; base classes come first
    NAME/parts.npy      uint8 [n], positions in `PARTS`
    NAME/roles.npy      uint8 [n], positions in `Role`, where a protocol of sessions gives some
    NAME/manifest.json  class names, counts, source, what was left out, content hash

Any tool that reads .npy can read it. The content hash covers pixels, labels, parts and class names
in their order, not where they came from: two sources with the same pictures have the same hash.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fewgraft.data.arrays import npy_array, npy_map
from fewgraft.data.parts import BASE_PARTS, NOVEL_PARTS, PARTS, Part, Role
from fewgraft.data.pictures import Pixels
from fewgraft.errors import FewgraftError, nearest, reading
from fewgraft.parsing import read_csv, read_json, validated

FORMAT = 1
ROLES = "roles.npy"
NAMES = "names.csv"  # beside the arrays, where classes have codes for names
LARGEST_SIZE = 1024  # pixels of a side


def _grey_or_colour(channels: int) -> int:
    if channels not in (1, 3):
        raise ValueError(f"pictures have 1 or 3 channels, not {channels}")
    return channels


Channels = Annotated[int, AfterValidator(_grey_or_colour)]


class Skipped(BaseModel):
    """A picture that was left out, and why."""

    model_config = ConfigDict(frozen=True)
    origin: str
    reason: str


class Manifest(BaseModel):
    """What a store says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int = FORMAT
    name: str
    kind: str
    source: str
    size: int = Field(ge=1, le=LARGEST_SIZE)
    channels: Channels
    pictures: int = Field(ge=1)
    classes: tuple[str, ...] = Field(min_length=1)
    counts: dict[str, int]
    content: str
    notes: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class ImageStore:
    """Pictures with labels and parts; the arrays may be memory maps."""

    pictures: Pixels
    labels: NDArray[np.int32]
    parts: NDArray[np.uint8]
    manifest: Manifest
    shown: Mapping[str, str] = field(default_factory=dict, compare=False)  # {class: name to show}
    roles: NDArray[np.uint8] | None = field(default=None, compare=False)
    _by_class: dict[Part, dict[int, NDArray[np.int64]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __len__(self) -> int:
        """How many pictures there are."""
        return len(self.labels)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of all classes; a label is a position in it."""
        return self.manifest.classes

    def name_of(self, label: int) -> str:
        """What people call a class: its name in names.csv, or else as the data has it."""
        return self.shown.get(self.classes[label], self.classes[label])

    @property
    def base_classes(self) -> tuple[str, ...]:
        """Names of the base classes: the first N_b of `classes`."""
        base = np.isin(self.parts, [part.code for part in BASE_PARTS])
        return self.classes[: int(self.labels[base].max(initial=-1)) + 1]

    @property
    def rehearses_on_base(self) -> bool:
        """Whether novel training classes must be drawn from base classes, for lack of others."""
        return not (self.parts == Part.NOVEL_TRAIN.code).any()

    @property
    def validates_on_base(self) -> bool:
        """Whether there are no novel classes to validate on, so that base/val must do, rotated."""
        return not (self.parts == Part.NOVEL_VAL.code).any()

    def indices(self, part: Part) -> NDArray[np.int64]:
        """Which pictures belong to a part, ascending."""
        return np.flatnonzero(self.parts == part.code).astype(np.int64)

    def by_class(self, part: Part) -> Mapping[int, NDArray[np.int64]]:
        """The pictures of each class of a part: {label: ascending indices}, labels ascending."""
        if part not in self._by_class:
            chosen = self.indices(part)
            labels = self.labels[chosen]
            present = np.unique(labels)
            self._by_class[part] = {int(label): chosen[labels == label] for label in present}
        return self._by_class[part]


def pixel_hash(size: int, channels: int) -> "hashlib._Hash":
    """The hash that a store's pixels are fed to, picture by picture."""
    return hashlib.sha256(f"{size}×{size}×{channels}".encode())


def content_hash(
    pixels: bytes, labels: NDArray[np.int32], parts: NDArray[np.uint8], classes: Sequence[str]
) -> str:
    """SHA-256 over the digest of the pixels, the labels and parts [n] and the class names."""
    whole = hashlib.sha256(pixels)
    whole.update(np.stack([labels, parts], axis=1).astype("<i4").tobytes())
    whole.update(json.dumps(list(classes)).encode())
    return whole.hexdigest()


def hash_arrays(
    pictures: Pixels, labels: NDArray[np.int32], parts: NDArray[np.uint8], classes: Sequence[str]
) -> str:
    """The content hash of arrays, read a slice at a time."""
    digest = pixel_hash(pictures.shape[1], pictures.shape[3])
    for start in range(0, len(pictures), 1024):
        digest.update(np.ascontiguousarray(pictures[start : start + 1024]).data)
    return content_hash(digest.digest(), labels, parts, classes)


def count_parts(parts: NDArray[np.uint8]) -> dict[str, int]:
    """How many pictures each part holds; parts without pictures are left out."""
    counts = np.bincount(parts, minlength=len(PARTS))
    return {str(part): int(counts[part.code]) for part in PARTS if counts[part.code]}


def open_store(folder: Path) -> ImageStore:
    """Open a store without reading its pictures; damage that shows at a glance is an error."""
    with reading(folder, "whole data set", _ADD_AGAIN):
        manifest = _read_manifest(folder / "manifest.json")
        n, size, channels = manifest.pictures, manifest.size, manifest.channels
        with reading(folder / "pictures.npy", "readable array", _ADD_AGAIN):
            pictures = npy_map(folder / "pictures.npy", np.uint8, (n, size, size, channels))
        with reading(folder / "labels.npy", "readable array", _ADD_AGAIN):
            labels = npy_array(folder / "labels.npy", np.int32, (n,))
        with reading(folder / "parts.npy", "readable array", _ADD_AGAIN):
            parts = npy_array(folder / "parts.npy", np.uint8, (n,))
        if labels.min() < 0 or labels.max() >= len(manifest.classes):
            raise ValueError(f"its labels run beyond its {len(manifest.classes)} classes")
        if parts.max() >= len(PARTS) or count_parts(parts) != manifest.counts:
            raise ValueError("its parts are not those that its manifest counts")
        shown = read_names(folder / NAMES, manifest.classes) if (folder / NAMES).exists() else {}
        return ImageStore(pictures, labels, parts, manifest, shown, _read_roles(folder, n))


def _read_roles(folder: Path, n: int) -> NDArray[np.uint8] | None:
    if not (folder / ROLES).exists():
        return None
    with reading(folder / ROLES, "readable array", _ADD_AGAIN):
        roles = npy_array(folder / ROLES, np.uint8, (n,))
        if roles.max() >= len(Role):
            raise ValueError("it has roles that there are none of")
        return roles


def read_names(path: Path, classes: Sequence[str]) -> dict[str, str]:
    """Names to show for classes whose own are codes, from a table with columns class and name."""
    with reading(path, "readable table of names"):
        header, rows = read_csv(path)
        if not {"class", "name"} <= set(header):
            raise ValueError("its columns are not class and name")
    found = {row["class"]: row["name"].strip() for row in rows}
    if unknown := [code for code in found if code not in classes]:
        raise FewgraftError(
            f"{path} names '{unknown[0]}', which is no class", nearest(unknown[0], classes)
        )
    return {code: name for code, name in found.items() if name}


_ADD_AGAIN = "Add it again with `fewgraft data add NAME --from PATH`."


def _read_manifest(path: Path) -> Manifest:
    with reading(path, "readable manifest", _ADD_AGAIN):
        content = read_json(path)
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise ValueError(
                f"it has format {content['format']}; this version reads format {FORMAT}"
            )
        return validated(Manifest, content)


def verify_store(store: ImageStore) -> None:
    """Read every byte and check it against the manifest and the rules of the six parts."""
    manifest = store.manifest
    found = hash_arrays(store.pictures, store.labels, store.parts, store.classes)
    if found != manifest.content:
        raise FewgraftError(
            f"{manifest.name}: the content hash is {found[:16]}, the manifest says "
            f"{manifest.content[:16]}: the files were changed or damaged",
            _ADD_AGAIN,
        )
    check_parts(store)


def check_parts(store: ImageStore) -> None:
    """Base classes first, every novel class in one part only, no class without a picture."""
    name = store.manifest.name
    homes: dict[int, Part] = {}
    base = {label for part in BASE_PARTS for label in store.by_class(part)}
    for part in NOVEL_PARTS:
        for label in store.by_class(part):
            if label in base or label in homes:
                other = homes.get(label, Part.BASE_TRAIN)
                raise FewgraftError(
                    f"{name}: class '{store.classes[label]}' is in {part} and in {other}; "
                    "novel parts must hold classes of their own"
                )
            homes[label] = part
    if base != set(range(len(base))) or len(base) + len(homes) != len(store.classes):
        raise FewgraftError(f"{name}: labels do not run through the class list, base classes first")
