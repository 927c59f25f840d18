"""Files and folders are whole whatever happens, and what a killed process left is cleared."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fewgraft.errors import FewgraftError
from fewgraft.files import (
    append_line,
    mend_folder,
    replacing_folder,
    temporary_folder,
    write_atomically,
)
from fewgraft.home import home_folder
from fewgraft.leftovers import IN_WORK, clear_leftovers, own_name

# Begins to write a folder, a file and a temporary folder, says so, and waits to be killed.
WORKER = """
import sys, time
from pathlib import Path
from fewgraft.files import replacing_folder, temporary_folder
from fewgraft.leftovers import in_work
root = Path(sys.argv[1])
with replacing_folder(root / "folder") as folder, in_work(root / "file", folder=False) as file:
    with temporary_folder() as temporary:
        (folder / "deep").mkdir()
        for path in (folder / "deep" / "half", file, temporary / "half"):
            path.write_text("half")
        print("\\n".join(map(str, (folder, file, temporary))), flush=True)
        sys.stdin.read()
"""


def begin(root: Path, *before: str) -> tuple["subprocess.Popen[str]", list[Path]]:
    process = subprocess.Popen(
        [*before, sys.executable, "-c", WORKER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(root)},
    )
    assert process.stdout
    return process, [Path(process.stdout.readline().strip()) for _ in range(3)]


def fewgraft(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "fewgraft", *words], check=True, capture_output=True)


def text_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def write_folder(target: Path, **files: str) -> None:
    with replacing_folder(target) as work:
        for name, text in files.items():
            (work / name).write_text(text)


# --- what the dead leave ---


def test_the_next_command_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    root = tmp_path / "somewhere"
    root.mkdir()
    process, left = begin(root)
    fewgraft("bench", "methods")
    assert all(path.exists() for path in left), "its process lives"
    process.kill()
    process.wait()
    assert all(path.exists() for path in left)
    fewgraft("bench", "methods")
    assert list(root.iterdir()) == []
    assert not (home_folder() / "in-work").exists() or not list(
        (home_folder() / "in-work").iterdir()
    )


def test_a_library_clears_when_it_writes(tmp_path: Path) -> None:
    process, left = begin(tmp_path)
    process.kill()
    process.wait()
    write_folder(tmp_path / "another", file="text")
    assert not any(path.exists() for path in left)


def test_without_a_list_the_next_writer_of_the_same_clears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no folder").write_text("")
    monkeypatch.setenv("FEWGRAFT_HOME", str(tmp_path / "no folder" / "home"))
    process, left = begin(tmp_path)
    process.kill()
    process.wait()
    clear_leftovers()
    write_folder(tmp_path / "folder", file="text")
    write_atomically(tmp_path / "file", b"text")
    assert [path.exists() for path in left] == [False, False, True]


@pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")
def test_a_process_of_another_container_keeps_its_work(tmp_path: Path) -> None:
    """One that shares the disk but not the process numbers: only its lock tells that it lives."""
    apart = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*apart, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs the right to make namespaces")
    process, left = begin(tmp_path, *apart)
    clear_leftovers()
    write_folder(tmp_path / "folder", file="text")
    assert all(path.exists() for path in left)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(path.exists() for path in left):  # its kernel ends its children in its own time
        assert time.monotonic() < deadline
        clear_leftovers()


def test_the_list_cannot_be_made_to_remove_anything_else(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    listed = home_folder() / "in-work"
    listed.mkdir(parents=True)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    link = tmp_path / f".x.in-work-{dead.pid}-12345-0123abcd"
    link.symlink_to(precious)
    outside = [precious, precious / "file", link, link / "file", Path("precious"), tmp_path]
    outside.append(tmp_path / f".x.in-work-{dead.pid}-12345-0123abcd" / ".." / "precious")
    for number, path in enumerate(outside):
        (listed / str(number)).symlink_to(path)
    (listed / "a file").write_text(str(precious))
    (listed / "a folder").mkdir()
    clear_leftovers()
    assert text_in(precious) == {"file": "mine"}
    assert link.is_symlink()


def test_a_leftover_that_holds_links_takes_nothing_with_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    root = tmp_path / "root"
    root.mkdir()
    process, (folder, *_) = begin(root)
    (folder / "link").symlink_to(precious)
    process.kill()
    process.wait()
    clear_leftovers()
    assert not folder.exists()
    assert text_in(precious) == {"file": "mine"}


def test_the_start_of_a_process_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    """A number used again is another process: the start must differ, and be told exactly."""
    name = own_name(tmp_path / "x", IN_WORK).name
    if sys.platform == "linux":
        assert re.fullmatch(r"\.x\.in-work-\d+-t\d+x[0-9a-f]{8}-[0-9a-f]{8}", name)
    again = re.sub(r"-t?(\d+)", lambda m: f"-t{int(m[1]) + 1}", name.replace(".x.", ".y."), count=1)
    (tmp_path / again).mkdir()
    mend_folder(tmp_path / "y")
    assert not (tmp_path / again).exists()


@pytest.mark.parametrize("length", [100, 200, 255])
def test_names_may_be_as_long_as_the_system_takes(tmp_path: Path, length: int) -> None:
    file, folder = tmp_path / ("f" * length), tmp_path / ("d" * length)
    for text in ("old", "new"):
        write_atomically(file, text.encode())
        write_folder(folder, inside=text)
        assert file.read_text() == text
        assert text_in(folder) == {"inside": text}


# --- links, pipes and devices ---


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    for name in ("folder", "file"):
        (tmp_path / f"{name} 1").symlink_to(f"{name} 2")  # a link to a link
        (tmp_path / f"{name} 2").symlink_to(tmp_path / "disk" / name)
    for text in ("first", "second", "third"):  # the first time there is nothing behind the link
        write_folder(tmp_path / "folder 1", file=text)
        write_atomically(tmp_path / "file 1", text.encode())
        assert text_in(tmp_path / "disk" / "folder") == {"file": text}
        assert (tmp_path / "disk" / "file").read_text() == text
    links = [path for path in tmp_path.iterdir() if path.is_symlink()]
    assert len(links) == 4
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("to", ["no such disk/folder", "link"])
def test_a_link_to_nowhere_is_named(tmp_path: Path, to: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / to)
    with pytest.raises(FewgraftError, match=r"link is a link to .*not there"):
        write_folder(tmp_path / "link", file="text")
    with pytest.raises(FewgraftError, match=r"link is a link to .*not there"):
        write_atomically(tmp_path / "link", b"text")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, b"text")
    reader.join()
    assert got == [b"text"]
    assert pipe.is_fifo()


def test_a_file_where_a_folder_should_be_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError):
        write_folder(tmp_path / "file", inside="text")
    with pytest.raises(OSError):
        write_folder(tmp_path / "file" / "below", inside="text")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "folder", b"text")
    assert (tmp_path / "file").read_text() == "mine"
    assert (tmp_path / "folder").is_dir()


def test_permissions_stay(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    write_folder(tmp_path / "folder", file="old")
    for path, mode in ((tmp_path / "file", 0o600), (tmp_path / "folder", 0o700)):
        path.chmod(mode)
    write_atomically(tmp_path / "file", b"new")
    write_folder(tmp_path / "folder", file="new")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700


# --- at the same time ---


def test_a_reader_always_finds_a_whole_folder(tmp_path: Path) -> None:
    """Where names can be exchanged there is no moment without a folder."""
    target = tmp_path / "folder"
    write_folder(target, file="0")
    loop = "import sys; from pathlib import Path; from fewgraft.files import replacing_folder\n"
    loop += "for i in range(300):\n with replacing_folder(Path(sys.argv[1])) as work:\n"
    loop += "  (work / 'file').write_text(sys.argv[2])"
    writers = [subprocess.Popen([sys.executable, "-c", loop, str(target), n]) for n in "12"]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if sys.platform == "linux":
            assert target.is_dir()
        try:
            seen.add((target / "file").read_text())
        except FileNotFoundError:
            continue  # of a folder that was replaced between two looks
    assert [writer.returncode for writer in writers] == [0, 0]
    assert seen <= {"0", "1", "2"}
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["folder"]


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_temporary_folder_goes_with_its_process(tmp_path: Path, sign: signal.Signals) -> None:
    process, (*_, temporary) = begin(tmp_path)
    assert temporary.stat().st_mode & 0o777 == 0o700
    process.send_signal(sign)
    process.wait()
    with temporary_folder():
        clear_leftovers()
    assert not temporary.exists()


def test_a_torn_line_is_cut_off_before_the_next(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_line(path, b"one")
    with path.open("ab") as file:
        file.write(b"tor")
    append_line(path, b"two")
    assert path.read_bytes() == b"one\ntwo\n"
