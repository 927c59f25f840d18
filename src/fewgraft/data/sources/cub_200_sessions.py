"""CUB-200 in sessions: 100 base species, then 100 novel ones, by their numbers.

Wah et al., "The Caltech-UCSD Birds-200-2011 dataset", 2011; sessions of ten classes as Tao et al.,
CVPR 2020. About 30 training and 28 test pictures of each species, by the official halves.
"""

from pathlib import Path

from fewgraft.data.build import Source
from fewgraft.data.session_rows import SessionPicture, inside, read_lines, session_source
from fewgraft.data.sources import SourceKind, SourceOptions, layout_error, refuse_split
from fewgraft.errors import FewgraftError, reading

USUAL_SIZE, N_BASE, CLASSES = 224, 100, 200
FILES = ("images.txt", "train_test_split.txt", "image_class_labels.txt")


def _open(path: Path, options: SourceOptions) -> Source:
    refuse_split(KIND, options)
    for folder in (path, path / "CUB_200_2011"):
        if all((folder / name).is_file() for name in FILES) and (folder / "images").is_dir():
            break
    else:
        raise layout_error(KIND, path)
    names, trains, labels = (_read(folder / name) for name in FILES)
    if not names.keys() == trains.keys() == labels.keys():
        raise FewgraftError(f"the three lists in {folder} are not of the same pictures")
    rows, classes = [], {}
    with reading(folder, "readable list of CUB-200"):
        for number in sorted(names, key=int):
            label = int(labels[number]) - 1
            classes[label] = inside(names[number]).split("/")[0]
            file = folder / "images" / names[number]
            rows.append(SessionPicture(file, label, trains[number] == "0"))
    if sorted(classes) != list(range(CLASSES)):
        raise FewgraftError(f"{folder} has {len(classes)} classes, not 1 to {CLASSES}")
    ordered = [classes[label] for label in range(CLASSES)]
    return session_source(KIND, path, ordered, N_BASE, rows, USUAL_SIZE, options)


def _read(file: Path) -> dict[str, str]:
    """{number of a picture: what the file says of it}."""
    with reading(file, "readable list of CUB-200"):
        pairs = [line.split(" ", 1) for line in read_lines(file, "readable list of CUB-200")]
        if any(len(pair) != 2 or not pair[0].isdecimal() for pair in pairs):
            raise ValueError("a line is not a number and a word")
        return dict(pairs)


KIND = SourceKind(
    name="cub-200-sessions",
    summary="CUB-200 in 100 base classes and 100 novel ones for sessions, 224 px",
    layout="the unpacked CUB_200_2011 folder with images/, images.txt, train_test_split.txt and "
    "image_class_labels.txt; lists of published shots session_2.txt ... session_11.txt anywhere "
    "below are used where they are there.",
    open=_open,
)
