"""From a form to the folders that `fewgraft learn` takes: new/CLASS/, pile/ and check/CLASS/.

The form numbers the classes: class1 with photos1, class2 with photos2 and so on. `pile` are photos
or zips of photos; `check` are zips with one folder per class.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fewgraft.app.learning.names import UNKNOWN, folded
from fewgraft.app.server.refusals import Budget, Limits, RequestError
from fewgraft.app.server.uploads import Received, Upload, is_zip, stored_name
from fewgraft.app.server.zips import unpack
from fewgraft.data.pictures import PictureError, check_picture

LONGEST = 80  # characters of a class name
LONGEST_FOLDER = 240  # bytes; most disks end at 255


@dataclass(frozen=True)
class Asked:
    """What a lesson was asked for: numbers of photos."""

    taught: dict[str, int]
    pile: int
    check: int

    @property
    def photos(self) -> int:
        """All of them."""
        return sum(self.taught.values()) + self.pile + self.check


def lay_out(received: Received, folder: Path, limits: Limits) -> Asked:
    """Put the files of a form where the command looks for them; whatever is wrong is refused."""
    budget = Budget(limits)
    classes = _classes(received)
    _refuse_other_fields(received)
    for number, name in classes.items():
        own = folder / "new" / name
        _new_folder(own, name)
        for place, upload in enumerate(received.of(f"photos{number}")):
            budget.take()
            _put(upload.path, upload.name, own / stored_name(place, upload.name))
    pile = _pile(received.of("pile"), folder, budget)
    check = _check(received.of("check"), folder, budget)
    return Asked({name: len(received.of(f"photos{n}")) for n, name in classes.items()}, pile, check)


def class_name(text: str) -> str:
    """A name for a class that is also fit for a folder."""
    name = unicodedata.normalize("NFC", text.strip())  # as most keyboards have it
    if not name:
        raise RequestError("a class has no name", "Give every class a name.")
    if len(name) > LONGEST or len(name.encode()) > LONGEST_FOLDER:
        raise RequestError(f"the class name '{name[:20]}…' is longer than {LONGEST} characters")
    if folded(name) == UNKNOWN:
        raise RequestError(
            f"no class can be called '{name}'", "That is the answer where no class fits."
        )
    if not name.isprintable() or re.search(r"[/\\:\ufffd]", name) or name.startswith("."):
        raise RequestError(
            f"'{''.join(c for c in name if c.isprintable())}' cannot be the name of a class",
            "Leave out slashes, colons, control characters and a dot at the beginning.",
        )
    return name


def _classes(received: Received) -> dict[str, str]:
    """{number: name}; every class has a name and a photo."""
    classes: dict[str, str] = {}
    for field, text in received.texts.items():
        if found := re.fullmatch(r"class(\d+)", field):
            name = class_name(text)
            if name in classes.values():
                raise RequestError(f"'{name}' is named twice", "Put its photos together.")
            if folded(name) in map(folded, classes.values()):
                raise RequestError(f"two classes have nearly the same name: '{name}'")
            classes[found[1]] = name
    for number, name in classes.items():
        if not received.of(f"photos{number}"):
            raise RequestError(
                f"'{name}' has no photo", "One to five photos of each class are enough."
            )
    if not classes:
        raise RequestError(
            "there is no class to learn", "Name one in the field class1, with files in photos1."
        )
    return classes


def _refuse_other_fields(received: Received) -> None:
    """A misspelt field must not be passed over in silence."""
    numbers = {field.removeprefix("class") for field in received.texts}
    known = {"pile", "check", *(f"photos{number}" for number in numbers)}
    for field in [file.field for file in received.files if file.field not in known]:
        raise RequestError(
            f"there is no place for the files of '{field[:80]}'",
            "Fields are class1, photos1, class2, photos2, ..., pile and check.",
        )
    for field in [field for field in received.texts if not re.fullmatch(r"class\d+", field)]:
        raise RequestError(f"the field '{field[:80]}' is not known, or holds no file")


def _pile(uploads: Iterable[Upload], folder: Path, budget: Budget) -> int:
    pile = folder / "pile"
    count = 0
    for upload in uploads:
        pile.mkdir(exist_ok=True)
        if not is_zip(upload.name):
            budget.take()
            _put(upload.path, upload.name, pile / stored_name(count, upload.name))
            count += 1
            continue
        unpacking = upload.path.with_suffix(".unpacked")
        unpacking.mkdir()
        for one in unpack(upload, unpacking, budget):
            _put(one.path, f"{one.name}' in '{upload.name}", pile / stored_name(count, one.name))
            count += 1
    return count


def _check(uploads: Iterable[Upload], folder: Path, budget: Budget) -> int:
    count = 0
    for upload in uploads:
        if not is_zip(upload.name):
            raise RequestError(
                f"'{upload.name}' is not a zip", "Check photos come as class folders."
            )
        unpacking = upload.path.with_suffix(".unpacked")
        unpacking.mkdir()
        for one in unpack(upload, unpacking, budget):
            if len(one.entry.parts) < 2:
                raise RequestError(
                    f"'{one.name}' in '{upload.name}' lies in no class folder",
                    "Put each check photo into a folder with the name of its class.",
                )
            own = folder / "check" / class_name(one.entry.parts[-2])
            own.mkdir(parents=True, exist_ok=True)
            _put(one.path, f"{one.name}' in '{upload.name}", own / stored_name(count, one.name))
            count += 1
    return count


def _new_folder(folder: Path, name: str) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:  # a disk that takes more names for the same than we do
        raise RequestError(f"two classes have nearly the same name: '{name}'") from None


def _put(source: Path, name: str, target: Path) -> None:
    try:
        check_picture(source)
    except PictureError as error:
        raise RequestError(
            f"'{name}' cannot be used: {error}",
            "Photos are JPEG, HEIC, PNG, WebP, GIF, TIFF or BMP.",
        ) from None
    source.rename(target)
