"""mini-ImageNet in sessions: 60 base classes, then 40 novel ones, by their sorted names, 84 px.

Tao et al., "Few-shot class-incremental learning", CVPR 2020. Each of the 100 classes has 500
training and 100 test pictures: not the classes and halves of the usual mini-ImageNet.
"""

from pathlib import Path

from fewgraft.data.build import Source
from fewgraft.data.session_rows import SessionPicture, inside, session_source
from fewgraft.data.sources import SourceKind, SourceOptions, layout_error, refuse_split
from fewgraft.errors import FewgraftError, reading
from fewgraft.parsing import read_csv

NATIVE_SIZE, N_BASE, CLASSES = 84, 60, 100


def _open(path: Path, options: SourceOptions) -> Source:
    refuse_split(KIND, options)
    for folder in (path, path / "miniimagenet"):
        tables = [folder / "split" / name for name in ("train.csv", "test.csv")]
        if all(table.is_file() for table in tables) and (folder / "images").is_dir():
            break
    else:
        raise layout_error(KIND, path)
    halves = [_read(table, folder / "images") for table in tables]
    classes = sorted({name for half in halves for _, name in half})
    if len(classes) != CLASSES:
        raise FewgraftError(f"{tables[0].parent} names {len(classes)} classes, not {CLASSES}")
    label = {name: number for number, name in enumerate(classes)}
    rows = [
        SessionPicture(file, label[name], tests)
        for half, tests in zip(halves, (False, True), strict=True)
        for file, name in half
    ]
    return session_source(KIND, path, classes, N_BASE, rows, NATIVE_SIZE, options)


def _read(table: Path, pictures: Path) -> list[tuple[Path, str]]:
    """Files and class names of one half."""
    with reading(table, "readable table"):
        header, rows = read_csv(table)
        if not {"filename", "label"} <= set(header):
            raise FewgraftError(f"{table} needs the header filename,label")
        return [(pictures / inside(row["filename"]), row["label"]) for row in rows]


KIND = SourceKind(
    name="mini-imagenet-sessions",
    summary="mini-ImageNet in 60 base classes and 40 novel ones for sessions, 84 px",
    layout="a folder miniimagenet with images/, split/train.csv and split/test.csv "
    "(filename,label) of all 100 classes; lists of published shots session_2.txt ... session_9.txt "
    "anywhere below are used where they are there.",
    open=_open,
)
