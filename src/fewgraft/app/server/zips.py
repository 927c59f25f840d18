"""Zips of photos: looked through before anything is unpacked, and unpacked under our own names."""

import shutil
import stat
import struct
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath

from fewgraft.app.server.refusals import MB, Budget, Limits, RequestError
from fewgraft.app.server.uploads import Upload, shown_name, stored_name
from fewgraft.data.sources.folder import NOT_PICTURES
from fewgraft.errors import why

SMALL = 100_000  # bytes; what is smaller when unpacked does no harm, however well it was packed
END, END_SIZE = b"PK\x05\x06", 22  # the record at the end of a zip, before its comment
ENTRY, ENTRY_SIZE = b"PK\x01\x02", 46  # a line of its index, before its name and comment
HEAD_SIZE = 30  # bytes before a packed file, besides its name
ZIP64 = b"PK\x06\x07"  # leads to a second end record, for more than 4 GB
TAIL = END_SIZE + 65_535 + 20  # where the end record lies, with the longest comment


@dataclass(frozen=True)
class Unpacked:
    """A file that came out of a zip."""

    entry: PurePosixPath  # where it lay in the zip
    path: Path

    @property
    def name(self) -> str:
        """For the eye."""
        return shown_name(self.entry.name)


def unpack(archive: Upload, folder: Path, budget: Budget) -> list[Unpacked]:
    """All photos of a zip, in its order; a zip with anything wrong in it is refused as a whole."""
    budget.list(_look_at_index(archive, budget.limits), archive.name)
    try:
        with zipfile.ZipFile(archive.path) as opened:
            for entry in opened.infolist():
                _look_at_path(entry.filename, archive.name)
            _refuse_overlaps(opened.infolist())
            entries = [entry for entry in opened.infolist() if not _passed_over(entry)]
            if not entries:
                raise RequestError(f"'{archive.name}' holds no photos")
            for entry in entries:
                _look_at(entry, archive.name, budget)
            return [
                Unpacked(PurePosixPath(entry.filename), _write(opened, entry, folder, number))
                for number, entry in enumerate(entries)
            ]
    except (RequestError, OSError):  # OSError: it is our disk that fails
        raise
    except Exception as error:  # damaged zips raise nearly anything
        raise _unopened(archive, why(error)) from None


def _refuse_overlaps(entries: Iterable[zipfile.ZipInfo]) -> None:
    """The same bytes must not be unpacked many times over."""
    ordered = sorted(entries, key=lambda entry: entry.header_offset)
    for entry, following in pairwise(ordered):
        if entry.header_offset + HEAD_SIZE + entry.compress_size > following.header_offset:
            raise zipfile.BadZipFile("its files overlap")


def _look_at_path(name: str, archive: str) -> None:
    """Such a path would do no harm here, where it is not used; but nobody packs photos so."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in "".join(path.parts[:1]):
        raise RequestError(
            f"the path of '{shown_name(name)}' in '{archive}' leads out of the zip",
            "Pack the folder anew, without such paths.",
        )


def _passed_over(entry: zipfile.ZipInfo) -> bool:
    """Folders, and what systems leave behind without being asked."""
    steps = PurePosixPath(entry.filename).parts
    hidden = any(step.startswith(".") for step in steps) or "__MACOSX" in steps
    return entry.is_dir() or hidden or (bool(steps) and steps[-1].lower() in NOT_PICTURES)


def _look_at(entry: zipfile.ZipInfo, archive: str, budget: Budget) -> None:
    """Refuse an entry by what the zip itself says of it."""
    where = f"'{shown_name(entry.filename)}' in '{archive}'"
    if entry.header_offset < 0:  # zipfile would seek there
        raise zipfile.BadZipFile("its beginning is missing")
    mode = stat.S_IFMT(entry.external_attr >> 16)
    if mode and not stat.S_ISREG(mode):
        raise RequestError(f"{where} is a link, not a photo", "Pack the photo itself.")
    if entry.flag_bits & 1:
        raise RequestError(f"{where} is encrypted", "Pack the photos without a password.")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise RequestError(f"{where} is packed in an unusual way", "Pack it anew, as a plain zip.")
    if entry.file_size > budget.limits.file:
        size = budget.limits.file // MB
        raise RequestError(f"{where} is larger than {size} MB", "Send a smaller copy.", status=413)
    if entry.file_size > max(SMALL, budget.limits.ratio * entry.compress_size):
        raise RequestError(f"{where} is packed too tightly to be a photo", status=413)
    budget.take(unpacked=entry.file_size)


def _write(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path, number: int) -> Path:
    """One file; reading stops at the size that was looked at, whatever the packed bytes hold."""
    path = folder / stored_name(number, entry.filename)
    with opened.open(entry) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    return path


def _look_at_index(archive: Upload, limits: Limits) -> int:
    """The number of entries; refuses a zip by its index, before zipfile makes objects of them.

    The end record is the one that zipfile takes, and there is no second one. It says where the
    index is; the index is walked, as the number of entries that the record states may be a lie.
    """
    with archive.path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - TAIL))
        tail = file.read()
        place = tail.rfind(END)
        if place < 0 or len(tail) < place + END_SIZE:
            raise RequestError(f"'{archive.name}' is not a zip")
        if tail[max(0, place - 20) : place].startswith(ZIP64):
            raise RequestError(
                f"'{archive.name}' is a zip of the kind ZIP64", "Pack it anew, as a plain zip."
            )
        disk, disks, here, count, length, start, comment = struct.unpack_from(
            "<4H2LH", tail, place + len(END)
        )
        if length > limits.index or count > limits.entries:
            raise RequestError(f"'{archive.name}' lists too many files", status=413)
        end = size - len(tail) + place
        whole = start + length == end and end + END_SIZE + comment == size
        if not whole or (disk, disks, here) != (0, 0, count):
            raise _unopened(archive, "its end does not fit the rest")
        file.seek(start)
        if _entries(file.read(length), limits.entries) != count:
            raise _unopened(archive, "its index is damaged")
    return int(count)


def _entries(index: bytes, most: int) -> int:
    """How many entries an index has; -1 where it is not made of entries from end to end."""
    place = count = 0
    while place < len(index) and count <= most:
        if not index.startswith(ENTRY, place) or place + ENTRY_SIZE > len(index):
            return -1
        place += ENTRY_SIZE + sum(struct.unpack_from("<3H", index, place + 28))
        count += 1
    return count if place == len(index) else -1


def _unopened(archive: Upload, reason: str) -> RequestError:
    return RequestError(f"'{archive.name}' is no zip that can be opened: {reason}")
