"""From a source to a store: decode beside the disk, write as it goes, rename when whole."""

import os
import warnings
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewgraft.data.parts import Part, Role
from fewgraft.data.pictures import PictureError, Pixels, read_picture
from fewgraft.data.store import (
    ROLES,
    ImageStore,
    Manifest,
    Skipped,
    check_parts,
    content_hash,
    count_parts,
    open_store,
    pixel_hash,
)
from fewgraft.errors import FewgraftError, writing
from fewgraft.files import NpyAppender, readable, replacing_folder
from fewgraft.progress import track

AHEAD = 64  # pictures decoded before they are wanted: enough to keep the cores busy, never more


@dataclass(frozen=True)
class Item:
    """One picture of a source: a file, its bytes, or decoded pixels [h, w(, c)]."""

    content: Path | bytes | Pixels
    label: int
    part: Part
    origin: str
    role: Role = Role.ANY


@dataclass(frozen=True)
class Source:
    """Where pictures come from. `items` is read once, in order, and never held whole."""

    kind: str
    where: Path
    classes: Sequence[str]  # base classes first
    items: Iterable[Item]
    total: int
    size: int
    channels: int = 3
    notes: tuple[
        str, ...
    ] = ()  # what a user should know: a list that is incomplete, a draw of ours


@dataclass
class _Written:
    """What remains in memory of the pictures: six bytes each, and the names of the bad ones."""

    labels: "array[int]" = field(default_factory=lambda: array("i"))
    parts: "array[int]" = field(default_factory=lambda: array("B"))
    roles: "array[int]" = field(default_factory=lambda: array("B"))
    skipped: list[Skipped] = field(default_factory=list)
    pixels: bytes = b""


def build_store(source: Source, folder: Path, name: str, *, strict: bool = False) -> ImageStore:
    """Write `source` to `folder`; the old store there stays until the new one is complete.

    A picture that cannot be read is left out and named in the manifest; `strict` refuses instead.
    """
    with writing(folder, "Nothing was changed there."), replacing_folder(folder) as work:
        written = _write_pictures(source, work)
        _refuse_if(source, written, strict)
        manifest = _write_index(source, written, work, name)
        (work / "manifest.json").write_text(manifest.model_dump_json(indent=1))
        check_parts(open_store(work))
    return open_store(folder)


def _write_pictures(source: Source, work: Path) -> _Written:
    written = _Written()
    digest = pixel_hash(source.size, source.channels)
    shape = (source.size, source.size, source.channels)
    with NpyAppender(work / "pictures.npy", shape, np.uint8) as pictures:
        for item, result in track(_decoded(source), f"Reading {source.kind}", source.total):
            if isinstance(result, PictureError):
                written.skipped.append(Skipped(origin=item.origin, reason=str(result)))
                continue
            pictures.append(result)
            digest.update(np.ascontiguousarray(result).data)
            written.labels.append(item.label)
            written.parts.append(item.part.code)
            written.roles.append(item.role)
    written.pixels = digest.digest()
    return written


def _decoded(source: Source) -> Iterator[tuple[Item, Pixels | PictureError]]:
    """Items with their pixels in the order of the source, decoded by several threads."""
    waiting: deque[tuple[Item, Future[Pixels | PictureError]]] = deque()
    with warnings.catch_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")  # Pillow's remarks on odd metadata
        for item in source.items:
            waiting.append((item, pool.submit(_try_to_read, item, source)))
            if len(waiting) == AHEAD:
                first, future = waiting.popleft()
                yield first, future.result()
        for item, future in waiting:
            yield item, future.result()


def _try_to_read(item: Item, source: Source) -> Pixels | PictureError:
    try:
        return read_picture(item.content, source.size, source.channels)
    except PictureError as error:
        return error


def _refuse_if(source: Source, written: _Written, strict: bool) -> None:
    """No store without pictures; with `strict`, none that lacks a picture."""
    if strict and written.skipped:
        raise FewgraftError(
            f"{len(written.skipped)} of {source.total} pictures cannot be read:\n"
            + describe_skipped(written.skipped),
            "Fix or remove them, or leave out --strict to skip them. Nothing was stored.",
        )
    if not written.labels:
        raise FewgraftError(
            f"{source.where} holds no picture that can be read", describe_skipped(written.skipped)
        )


def describe_skipped(skipped: Sequence[Skipped], most: int = 10) -> str:
    """One line per picture, the first `most` of them."""
    lines = [f"  {picture.origin}: {picture.reason}" for picture in skipped[:most]]
    if len(skipped) > most:
        lines.append(f"  ... and {len(skipped) - most} more")
    return "\n".join(lines)


def _write_index(source: Source, written: _Written, work: Path, name: str) -> Manifest:
    labels, classes = _without_empty_classes(np.array(written.labels, np.int32), source.classes)
    parts = np.array(written.parts, np.uint8)
    np.save(work / "labels.npy", labels)
    np.save(work / "parts.npy", parts)
    if any(written.roles):
        np.save(work / ROLES, np.array(written.roles, np.uint8))
    return Manifest(
        name=name,
        kind=source.kind,
        source=readable(source.where),
        size=source.size,
        channels=source.channels,
        pictures=len(labels),
        classes=tuple(classes),
        counts=count_parts(parts),
        content=content_hash(written.pixels, labels, parts, classes),
        notes=source.notes,
        skipped=tuple(written.skipped),
    )


def _without_empty_classes(
    labels: NDArray[np.int32], classes: Sequence[str]
) -> tuple[NDArray[np.int32], list[str]]:
    """A class none of whose pictures could be read is no class."""
    present, renumbered = np.unique(labels, return_inverse=True)
    return renumbered.astype(np.int32), [classes[label] for label in present]
