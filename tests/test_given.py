"""Photos by table, by list and by folder; addresses are refused wherever a path is given."""

import sys
from pathlib import Path

import pytest

import fewgraft
from fewgraft.app.features.given import labelled_photos, refuse_addresses, unlabelled_photos
from fewgraft.cli import main
from fewgraft.errors import FewgraftError
from fewgraft.model import load_model

PHOTOS = ("cat/one photo.jpg", "cat/2.jpg", 'dog/a "good" one, too.jpg', "dog/é.jpg")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in PHOTOS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def table(root: Path, text: str | bytes, name: str = "my table.csv") -> Path:
    content = text if isinstance(text, bytes) else text.encode()
    (root / name).write_bytes(content)
    return root / name


COMMAS = """\
cat/one photo.jpg,cat
cat/2.jpg,cat
"dog/a ""good"" one, too.jpg",dog
dog/é.jpg,dog
"""
SEMICOLONS = COMMAS.replace(",cat", ";cat").replace(",dog", ";dog")
GOOD: dict[str, str | bytes] = {
    "no header": COMMAS,
    "header": f"path,label\n{COMMAS}",
    "capitals and spaces": f" Path , LABEL\n{COMMAS.replace(',cat', ' , cat ')}",
    "byte order mark": b"\xef\xbb\xbfpath,label\n" + COMMAS.encode(),
    "carriage returns": f"path,label\n{COMMAS}".replace("\n", "\r\n"),
    "old carriage returns": f"path,label\n{COMMAS}".replace("\n", "\r"),
    "empty lines": f"\n\npath,label\n\n,\n{COMMAS}\n\n",
    "semicolons of Excel": f"path;label\r\n{SEMICOLONS}",
    "semicolons without header": SEMICOLONS,
    "semicolons and commas": "\n".join(SEMICOLONS.splitlines()[::-1]),
    "tabs": SEMICOLONS.replace(";", "\t"),
    "rows twice": COMMAS + COMMAS,
    "another order, more columns": "id,label,path\n"
    + "".join(f'{n},{p[:3]},"{p.replace(chr(34), chr(34) * 2)}"\n' for n, p in enumerate(PHOTOS)),
}


@pytest.mark.parametrize("kind", GOOD)
def test_tables_of_every_make(kind: str, root: Path) -> None:
    path = table(root, GOOD[kind])
    classes = labelled_photos(path, at_least=2)
    assert list(classes) == ["cat", "dog"]
    found = {str(p.relative_to(root)) for photos in classes.values() for p in photos}
    assert found == set(PHOTOS)
    assert all(p.parent.name == name for name, photos in classes.items() for p in photos)
    assert sorted(unlabelled_photos(path)) == sorted(root / name for name in PHOTOS)


def test_absolute_paths_and_paths_from_the_table(root: Path, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    text = f"{root / 'cat/2.jpg'},cat\n../dog/é.jpg,dog\n"
    classes = labelled_photos(table(tmp_path / "lists", text))
    assert {name: photos[0].read_bytes() for name, photos in classes.items()} == {
        "cat": b"cat/2.jpg",
        "dog": "dog/é.jpg".encode(),
    }


def test_class_folders_as_before(root: Path) -> None:
    assert list(labelled_photos(root)) == ["cat", "dog"]
    assert unlabelled_photos(root / "cat/2.jpg") == [root / "cat/2.jpg"]
    with pytest.raises(FewgraftError, match="neither a photo nor a folder"):
        unlabelled_photos(root / "gone.csv")


BAD: dict[str, tuple[str | bytes, str]] = {
    "missing": (
        "cat/2.jpg,cat\ncat/3.jpg,cat\ncat/4.jpg,cat\n",
        "line 2: .*3.jpg does not exist, and 1 more",
    ),
    "folder": ("cat,cat\n", "line 1: .*cat is a folder"),
    "short row": ("path,label\ncat/2.jpg,cat\ncat/2.jpg\n", "line 3: 1 columns where 2"),
    "long row": ("cat/2.jpg,cat,3\n", "line 1: 3 columns where 2"),
    "no label": ("cat/2.jpg,cat\n\ncat/2.jpg, \n", "line 3: cat/2.jpg has no label"),
    "no path": (",cat\n", "line 1: there is no path"),
    "header": ("path,class\ncat/2.jpg,cat\n", "line 1: the header needs one column 'label'"),
    "header twice": ("path,label,path\n", "line 1: the header needs one column 'path'"),
    "quote": ('cat/2.jpg,cat\n"cat/2.jpg,cat\n', "line 2: "),
    "two labels": (
        "cat/2.jpg,cat\n./cat/2.jpg,dog\n",
        "line 2: .* is 'dog' here and 'cat' in line 1",
    ),
    "not UTF-8": (
        "path,label\ncat/2.jpg,cat\ndog/é.jpg,dog\n".encode("cp1252"),
        "line 3: this is not UTF-8",
    ),
    "UTF-16": ("path,label\n".encode("utf-16"), "line 1: this is not UTF-8"),
    "address": (
        "cat/2.jpg,cat\nhttps://host/a.jpg,cat\n",
        "line 2: https://host/a.jpg is an address",
    ),
    "bucket": ("s3://bucket/a.jpg,cat\n", "line 1: s3://bucket/a.jpg is an address"),
    "empty": ("", "names photos of 0 classes; at least 1 is needed"),
    "header alone": ("path,label\n", "0 classes"),
    "zero byte": ("a\0b.jpg,cat\n", "line 1"),
    "long name": (f"{'x' * 5000}.jpg,cat\n", "my table.csv"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_wrong_is_told_with_its_line(kind: str, root: Path) -> None:
    text, said = BAD[kind]
    path = table(root, text)
    with pytest.raises(FewgraftError, match=said) as told:
        labelled_photos(path)
    assert str(path) in told.value.problem
    assert told.value.hint


def test_a_list_has_one_path_per_line(root: Path) -> None:
    """Whatever is in the names: no quotes are needed."""
    path = table(root, "\ufeff" + "\r\n".join(PHOTOS) + "\r\n\r\n", "pile.txt")
    assert unlabelled_photos(path) == [root / name for name in PHOTOS]
    for text, said in (("", "holds no photos"), ("gone.jpg", "line 1"), ("x\nftp://a/b", "ftp://")):
        with pytest.raises(FewgraftError, match=said):
            unlabelled_photos(table(root, text, "pile.txt"))


def test_columns_of_a_table_without_labels(root: Path) -> None:
    assert unlabelled_photos(table(root, "path\ncat/2.jpg\n")) == [root / "cat/2.jpg"]
    with pytest.raises(FewgraftError, match="line 2: 2 columns where 1"):
        unlabelled_photos(table(root, "cat/2.jpg\ncat/one photo.jpg,cat\n"))
    with pytest.raises(FewgraftError, match="needs one column 'path'"):
        unlabelled_photos(table(root, "label\ncat\n"))


# --- addresses ---

ADDRESSES = ("http://host/a.zip", "https://host/photos", "s3://bucket/x", "gs://b/x", "file:///x")


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_as_paths(address: str) -> None:
    """A path has one slash less."""
    for given in (address, Path(address)):
        with pytest.raises(FewgraftError) as told:
            refuse_addresses(None, given)
        assert told.value.problem.startswith(address.split(":", maxsplit=1)[0] + "://")
        assert "nothing is ever downloaded" in told.value.problem
        assert "Download it yourself" in told.value.hint


def test_what_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_addresses("icons", Path("C:/photos"), "onnx:file.onnx", Path("a b/c:d"), None)
    (tmp_path / "http:" / "x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    refuse_addresses("http://x")  # which is there


COMMANDS = (
    ("base", "https://host/old", "--out", "v"),
    ("base", "--head", "https://host/h", "--names", "n", "--out", "v"),
    ("learn", "https://host/v1", "--new", "n", "--out", "v"),
    ("learn", "icons", "--new", "https://host/new", "--out", "v"),
    ("learn", "icons", "--new", "{n}", "--unlabelled", "https://host/pile.zip", "--out", "v"),
    ("learn", "icons", "--new", "{n}", "--check", "https://host/old_val", "--out", "v"),
    ("predict", "icons", "https://host/a.jpg"),
    ("predict", "https://host/v1", "a.jpg"),
    ("export", "https://host/v1", "a.onnx"),
    ("serve", "https://host/v1"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_addresses_at_the_command_line(
    words: tuple[str, ...],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setattr(sys, "argv", ["fewgraft", *(word.format(n=root) for word in words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "error: https://host/" in said
    assert "Download it yourself" in said


def test_the_three_commands_by_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from campaign.layouts import photo_tree

    photos = photo_tree(tmp_path / "all of them", 4, 5)
    files = sorted(p.relative_to(tmp_path) for p in photos.rglob("*.png"))
    names = sorted({p.parent.name for p in files})

    def rows(name: str, some: slice) -> list[str]:
        return [f"{p},{name}\n" for p in [p for p in files if p.parent.name == name][some]]

    old = [row for name in names[:3] for row in rows(name, slice(0, 3))]
    table(tmp_path, "path,label\n" + "".join(old), "old.csv")
    check = [row for name in names[:3] for row in rows(name, slice(3, 5))]
    table(tmp_path, "".join(check).replace(",", ";"), "check.csv")
    table(tmp_path, "".join(rows(names[3], slice(0, 2))), "new.csv")
    table(tmp_path, "\n".join(map(str, files)), "pile.txt")
    backbone = Path(fewgraft.__file__).parent / "zoo_models" / "icons" / "algorithm-2"
    monkeypatch.chdir(tmp_path)
    for words in (
        f"base old.csv --backbone {backbone} --out v1",
        "learn v1 --new new.csv --unlabelled pile.txt --check check.csv --out v2",
        "predict v2 pile.txt --csv out.csv",
    ):
        monkeypatch.setattr(sys, "argv", ["fewgraft", *words.split()])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    assert load_model(tmp_path / "v2").card.classes == tuple(names)
    said = capsys.readouterr().out
    assert "(6 check photos)" in said
    assert "2 photos of the pile are examples as well" in said
    assert "wrote out.csv: 20 photos" in said
