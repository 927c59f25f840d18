"""Zips of photos: looked through before anything is unpacked, and unpacked under our own names."""

import shutil
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fewgraft.app.server.refusals import MB, Budget, RequestError
from fewgraft.app.server.uploads import Upload, shown_name, stored_name
from fewgraft.data.sources.folder import NOT_PICTURES

LARGEST_INDEX = 8 * MB  # bytes of a zip's list of entries; 5,000 long names need less
SMALL = 100_000  # bytes; what is smaller when unpacked does no harm, however well it was packed
END = b"PK\x05\x06"  # the record at the end of a zip


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
    _refuse_large_index(archive)
    try:
        with zipfile.ZipFile(archive.path) as opened:
            for entry in opened.infolist():
                _look_at_path(entry.filename, archive.name)
            entries = [entry for entry in opened.infolist() if not _passed_over(entry)]
            if not entries:
                raise RequestError(f"'{archive.name}' holds no photos")
            for entry in entries:
                _look_at(entry, archive.name, budget)
            return [
                Unpacked(PurePosixPath(entry.filename), _write(opened, entry, folder, number))
                for number, entry in enumerate(entries)
            ]
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, ValueError) as error:
        raise RequestError(f"'{archive.name}' is no zip that can be opened: {error}") from None


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
    if entry.header_offset < 0:
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


def _refuse_large_index(archive: Upload) -> None:
    """A list of millions of entries would fill the memory before a single one is looked at."""
    with archive.path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 66_000))
        end = file.read()
    place = end.rfind(END)
    if place < 0 or len(end) < place + 22:
        raise RequestError(f"'{archive.name}' is not a zip")
    (index,) = struct.unpack_from("<I", end, place + 12)
    if index > LARGEST_INDEX:
        raise RequestError(f"'{archive.name}' lists too many files", status=413)
