"""Stores are whole or absent, flat in memory, and honest about what they left out."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from conftest import noise
from PIL import Image
from test_pictures import damaged_pictures
from typer.testing import CliRunner

from fewgraft.cli import app
from fewgraft.data.build import Item, Source, build_store
from fewgraft.data.catalogue import add_data, added_names, open_data
from fewgraft.data.contact_sheet import class_rows
from fewgraft.data.parts import Part
from fewgraft.data.sources import SourceOptions
from fewgraft.data.store import hash_arrays, open_store, verify_store
from fewgraft.errors import FewgraftError
from fewgraft.files import NpyAppender, replacing_folder

MakeTree = Callable[..., Path]


def small_source(pictures: int = 12, size: int = 6) -> Source:
    homes = [Part.BASE_TRAIN, Part.BASE_TEST, Part.NOVEL_VAL, Part.NOVEL_TEST]
    labels = [0, 0, 1, 2]
    items = [
        Item(noise(i, size, size, 3), labels[i % 4], homes[i % 4], f"picture {i}")
        for i in range(pictures)
    ]
    return Source("made up", Path("nowhere"), ["a", "b", "c"], items, pictures, size)


def test_a_store_gives_back_what_went_in(tmp_path: Path) -> None:
    source = small_source()
    store = build_store(source, tmp_path / "made up", "made up")
    items = list(source.items)
    assert (store.pictures == np.stack([item.content for item in items])).all()  # type: ignore[misc]
    assert store.labels.tolist() == [item.label for item in items]
    assert [list(Part)[code] for code in store.parts] == [item.part for item in items]
    assert isinstance(store.pictures, np.memmap)
    assert store.base_classes == ("a",)
    assert store.rehearses_on_base
    assert store.by_class(Part.NOVEL_TEST)[2].tolist() == [3, 7, 11]
    assert store.manifest.counts == {
        "base/train": 3,
        "base/test": 3,
        "novel/val": 3,
        "novel/test": 3,
    }
    verify_store(store)


def test_any_tool_that_reads_npy_reads_a_store(tmp_path: Path) -> None:
    build_store(small_source(), tmp_path / "s", "s")
    assert np.load(tmp_path / "s" / "pictures.npy").shape == (12, 6, 6, 3)
    assert json.loads((tmp_path / "s" / "manifest.json").read_text())["classes"] == ["a", "b", "c"]


def test_the_content_hash_covers_pixels_labels_parts_and_names(tmp_path: Path) -> None:
    store = build_store(small_source(), tmp_path / "s", "s")
    pictures = np.array(store.pictures)
    labels, parts, classes = store.labels.copy(), store.parts.copy(), list(store.classes)
    same = hash_arrays(pictures, labels, parts, classes)
    assert same == store.manifest.content
    pictures[5, 1, 1, 1] ^= 1
    changed = {hash_arrays(pictures, labels, parts, classes)}
    pictures[5, 1, 1, 1] ^= 1
    labels[0], labels[2] = labels[2], labels[0]
    changed.add(hash_arrays(pictures, labels, parts, classes))
    labels[0], labels[2] = labels[2], labels[0]
    parts[0] = Part.BASE_VAL.code
    changed.add(hash_arrays(pictures, labels, parts, classes))
    parts[0] = Part.BASE_TRAIN.code
    changed.add(hash_arrays(pictures, labels, parts, ["a", "b", "d"]))
    assert len(changed) == 4
    assert same not in changed


def test_classes_with_codes_have_names_to_show(tmp_path: Path) -> None:
    plain = build_store(small_source(), tmp_path / "s", "s")
    table = tmp_path / "n.csv"
    table.write_text("class,name\na,house finch\nc,\n")
    words = ["data", "names", "s", str(table), "--root", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "1 of 3 classes" in result.output
    store = open_store(tmp_path / "s")
    assert [store.name_of(label) for label in range(3)] == ["house finch", "b", "c"]
    assert store.classes == plain.classes, "episodes and models know them by their codes"
    verify_store(store)
    [row] = class_rows(store, [Part.BASE_TRAIN], 1, 1, 0)
    assert row.label.startswith("house finch")
    table.write_text("class,name\nx,house finch\n")
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, FewgraftError)
    assert "no class" in str(result.exception)
    assert open_store(tmp_path / "s").name_of(0) == "house finch", "the old ones stay"
    table.write_text("code,word\na,b\n")
    assert isinstance(CliRunner().invoke(app, words).exception, FewgraftError)


@pytest.mark.parametrize("file", ["pictures.npy", "labels.npy", "parts.npy", "manifest.json"])
def test_damage_is_found_and_named(tmp_path: Path, file: str) -> None:
    build_store(small_source(), tmp_path / "s", "s")
    path = tmp_path / "s" / file
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    with pytest.raises(FewgraftError, match=r"s"):
        verify_store(open_store(tmp_path / "s"))
    for damaged in (whole[: len(whole) // 2], b""):
        path.write_bytes(damaged)
        with pytest.raises(FewgraftError, match=f"{file} is not a readable"):
            open_store(tmp_path / "s")
    path.unlink()
    with pytest.raises(FewgraftError):
        open_store(tmp_path / "s")


def test_a_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    build_store(small_source(), tmp_path / "s", "s")
    path = tmp_path / "s" / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(FewgraftError, match="format 99"):
        open_store(tmp_path / "s")


def test_a_novel_class_in_two_parts_is_refused(tmp_path: Path) -> None:
    source = small_source()
    items = [*source.items, Item(noise(99, 6, 6, 3), 1, Part.NOVEL_TEST, "stray")]
    bad = Source("made up", Path("nowhere"), source.classes, items, len(items), 6)
    with pytest.raises(FewgraftError, match="class 'b' is in novel/test and in novel/val"):
        build_store(bad, tmp_path / "s", "s")
    assert not (tmp_path / "s").exists()


def test_damaged_pictures_are_skipped_named_and_counted(
    make_tree: MakeTree, tmp_path: Path
) -> None:
    root = make_tree(classes=4, pictures=6)
    damaged = damaged_pictures()
    for name, content in damaged.items():
        (root / "class 01" / name).write_bytes(content)
    (root / "class 02" / ".hidden").write_bytes(b"not looked at")
    (root / "class 02" / "Thumbs.db").write_bytes(b"not looked at")
    store = add_data("photos", root, options=SourceOptions(size=8))
    assert len(store) == 24
    assert {s.origin for s in store.manifest.skipped} == {f"class 01/{name}" for name in damaged}
    assert all(s.reason for s in store.manifest.skipped)
    before = store.manifest.content
    with pytest.raises(FewgraftError, match=rf"{len(damaged)} of {24 + len(damaged)} pictures"):
        add_data("photos", root, strict=True)
    assert open_data("photos").manifest.content == before, "--strict must leave the old store alone"


def test_file_names_that_are_no_text_are_taken(make_tree: MakeTree) -> None:
    root = make_tree(classes=3, pictures=4)
    odd = Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9"))
    (root / "class 00").rename(odd)
    (odd / os.fsdecode(b"br\xf6ken.png")).write_bytes(b"")
    store = add_data("photos", root)
    assert "caf\\xe9" in store.classes
    assert [s.origin for s in store.manifest.skipped] == ["caf\\xe9/br\\xf6ken.png"]


def test_a_class_without_a_readable_picture_is_left_out(make_tree: MakeTree) -> None:
    root = make_tree(classes=5, pictures=6)
    for file in (root / "class 03").iterdir():
        file.write_bytes(b"broken")
    store = add_data("photos", root)
    assert "class 03" not in store.classes
    assert len(store.classes) == 4
    verify_store(store)


def test_nothing_readable_is_an_error_and_leaves_nothing(
    make_tree: MakeTree, tmp_path: Path
) -> None:
    root = make_tree(classes=3, pictures=2)
    for file in root.rglob("*.png"):
        file.write_bytes(b"")
    with pytest.raises(FewgraftError, match="no picture that can be read"):
        add_data("photos", root)
    assert [p for p in (tmp_path / "home").rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "-x", "icons"])
def test_names_that_cannot_be_are_refused(make_tree: MakeTree, name: str) -> None:
    with pytest.raises(FewgraftError):
        add_data(name, make_tree(classes=3, pictures=3))


def test_unknown_names_get_the_nearest_one(make_tree: MakeTree) -> None:
    add_data("my birds", make_tree(classes=3, pictures=4))
    with pytest.raises(FewgraftError, match="my birds"):
        open_data("my bird")
    with pytest.raises(FewgraftError, match="data add cifar-fs"):
        open_data("cifar-fs")


# --- whole or not at all ---


def add_command(source: Path, root: Path, *more: str) -> list[str]:
    arguments = ["data", "add", "photos", "--from", str(source), "--root", str(root), *more]
    return [sys.executable, "-m", "fewgraft", *arguments]


def content_after_adding(tree: Path, root: Path) -> str:
    subprocess.run(add_command(tree, root), check=True, capture_output=True)
    return open_data("photos", root).manifest.content


@pytest.mark.parametrize(
    ("kills", "sign"),
    [
        (6, signal.SIGKILL),
        (3, signal.SIGINT),
        pytest.param(40, signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_a_killed_add_leaves_the_old_store_or_the_new(
    make_tree: MakeTree, tmp_path: Path, kills: int, sign: signal.Signals
) -> None:
    """Real processes that replace one store by the other, killed at random moments."""
    trees = [make_tree(classes=6, pictures=200, name=f"photos {i}") for i in range(2)]
    next(trees[1].rglob("*.png")).unlink()
    root = tmp_path / "stores"
    contents = {content_after_adding(tree, root): tree for tree in trees}
    assert len(contents) == 2
    start = time.monotonic()
    there = content_after_adding(trees[0], root)
    duration = time.monotonic() - start
    rng, ended_early = random.Random(kills), 0
    for number in range(kills):
        coming = next(content for content in contents if content != there)
        command = add_command(contents[coming], root)
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # A shell's background job ignores Ctrl-C, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        if number == 0:  # one by its progress: a clock may miss them all
            while process.poll() is None and not list(root.glob(".photos.in-work-*")):
                time.sleep(0.001)
        else:
            time.sleep(rng.uniform(0.2, 1.05) * duration)
        process.send_signal(sign)
        if process.wait() == 0:
            there = coming
        else:
            ended_early += 1
        store = open_data("photos", root)
        verify_store(store)
        assert store.manifest.content in ({there, coming} if process.returncode else {coming})
        there = store.manifest.content
    assert ended_early, "no kill came before the end: the test shows nothing"
    content_after_adding(trees[0], root)
    assert sorted(p.name for p in root.iterdir()) == ["photos"], "remains were not cleared away"


ODD_NAMES = ["photos", "photos [old]", "replaced-7", "a.in-work-b"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_old_store_between_two_renames_is_put_back(tmp_path: Path, name: str) -> None:
    root = tmp_path / "stores"
    build_store(small_source(), root / name, name)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (root / name).rename(root / f".{name}.replaced-{dead.pid}-{time.time():.0f}-abc")
    (root / f".{name}.in-work-{dead.pid}-{time.time():.0f}-abc").mkdir()
    (root / f".{name}.in-work-{os.getpid()}-12345-abc").mkdir()  # a number used again
    assert added_names(root) == []
    assert len(open_data(name, root)) == 12
    assert [p.name for p in root.iterdir()] == [name]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_living_process_keeps_its_work(tmp_path: Path, name: str) -> None:
    root = tmp_path / "stores"
    build_store(small_source(), root / name, name)
    parent = psutil.Process(os.getppid())
    work = root / f".{name}.in-work-{parent.pid}-{parent.create_time():.0f}-abc"
    work.mkdir()
    open_data(name, root)
    assert work.is_dir()


def test_of_two_writers_at_once_the_last_one_wins(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with replacing_folder(target) as slow:
        (slow / "file").write_text("slow")
        with replacing_folder(target) as quick:
            (quick / "file").write_text("quick")
        assert (target / "file").read_text() == "quick"
    assert (target / "file").read_text() == "slow"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_an_exception_leaves_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with replacing_folder(target) as work:
        (work / "file").write_text("old")

    def interrupted() -> None:
        with replacing_folder(target) as work:
            (work / "file").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (target / "file").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_a_root_that_is_a_file_is_an_error(make_tree: MakeTree, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FewgraftError, match="cannot write"):
        add_data("photos", make_tree(), root=tmp_path / "file")


# --- flat in memory ---


def peak_memory(command: list[str]) -> int:
    """Peak resident memory of a real process, in bytes."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units elsewhere")
def test_memory_does_not_grow_with_the_pictures(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    sizes = {}
    for pictures in (50, 1200):
        for c in range(3):
            folder = root / f"class {c}"
            folder.mkdir(parents=True, exist_ok=True)
            first = folder / "0.jpg"
            if not first.exists():
                Image.fromarray(noise(c, 160, 160, 3)).save(first)
            for p in range(1, pictures):
                if not (folder / f"{p}.jpg").exists():
                    os.link(first, folder / f"{p}.jpg")
        sizes[pictures] = peak_memory(add_command(root, tmp_path / "stores", "--size", "160"))
    stored = (tmp_path / "stores" / "photos" / "pictures.npy").stat().st_size
    assert stored > 250_000_000
    assert sizes[1200] - sizes[50] < 30_000_000


def test_rows_of_a_wrong_shape_are_refused(tmp_path: Path) -> None:
    with NpyAppender(tmp_path / "a.npy", (2, 3), np.uint8) as rows:
        rows.append(np.ones((2, 3), np.uint8))
        with pytest.raises(ValueError, match=r"\(3, 2\)"):
            rows.append(np.ones((3, 2), np.uint8))
    assert np.load(tmp_path / "a.npy").shape == (1, 2, 3)
