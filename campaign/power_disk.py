"""A disk that loses power: what a traced process did, and all that may be left of it.

The model is the worst that POSIX allows. Bytes of a file are safe when the file is synced, names in
a folder when the folder is. Of what was not synced, each folder keeps any number of its changes, in
their order; each file keeps nothing, a half or all of what was written since.
"""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union

from campaign.attack import environment

CALLS = (
    "openat,creat,close,dup,dup2,dup3,fcntl,lseek,write,pwrite64,writev,ftruncate,truncate,mkdir,"
    "mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,symlink,symlinkat,link,fsync,fdatasync"
)
_LINE = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|\?)(?: .*)?$", re.DOTALL)
_MOST = 200  # ways to lose what is not safe that are looked at after each call

Tree = dict[str, bytes]  # path → content


@dataclass(eq=False)
class File:
    """Bytes, and those of them that are safe."""

    content: bytes = b""
    safe: bytes = b""

    def remains(self, share: int) -> bytes:
        """Nothing (0), a half (1) or all (2) of what is not safe."""
        if self.content == self.safe:
            return self.safe
        return (self.safe, self.content[: (len(self.content) + 1) // 2], self.content)[share]


@dataclass(eq=False)
class Folder:
    """Names, and the changes since they were last safe; each change is done whole or not."""

    names: dict[str, "Node"] = field(default_factory=dict)
    safe: dict[str, "Node"] = field(default_factory=dict)
    changes: list[dict[str, "Node | None"]] = field(default_factory=list)

    def change(self, new: dict[str, "Node | None"]) -> None:
        """Names and what they stand for from now on."""
        _apply(self.names, new)
        self.changes.append(new)

    def sync(self) -> None:
        """All names are safe."""
        self.safe, self.changes = dict(self.names), []


Node = Union[File, Folder]  # noqa: UP007


def _apply(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def snapshot(path: Path) -> Node:
    """What is on the real disk, all of it safe."""
    if not path.is_dir():
        content = path.read_bytes()
        return File(content, content)
    names = {child.name: snapshot(child) for child in path.iterdir()}
    return Folder(names, dict(names))


@dataclass
class _Open:
    node: Node
    path: Path
    place: int = 0
    append: bool = False


class Disk:
    """The folder `root`, and what a traced process does to it call by call."""

    def __init__(self, root: Path) -> None:
        self.root = root
        top = snapshot(root)
        assert isinstance(top, Folder)
        self.top = top
        self._open: dict[int, _Open] = {}
        self._outside: dict[int, Path] = {}

    def apply(self, call: str, words: list[str], result: int) -> bool:
        """Do what a call did; whether it may change what is left."""
        if result < 0:
            return False
        does = getattr(self, f"_do_{call}", None)
        return bool(does(words, result)) if does else False

    def _path(self, text: str, at: str = "AT_FDCWD") -> Path:
        name = Path(_text(text).decode())
        if name.is_absolute() or at == "AT_FDCWD":
            return name
        if int(at) in self._open:
            return self._open[int(at)].path / name
        return self._outside.get(int(at), Path("/nowhere")) / name

    def _home(self, path: Path) -> Folder | None:
        """The folder a path lies in, if that is on this disk."""
        if not path.is_relative_to(self.root) or path == self.root:
            return None
        node: Node = self.top
        for name in path.parent.relative_to(self.root).parts:
            assert isinstance(node, Folder)
            node = node.names[name]
        assert isinstance(node, Folder)
        return node

    def _do_openat(self, words: list[str], result: int) -> bool:
        path, flags = self._path(words[1], words[0]), words[2]
        self._open.pop(result, None)
        self._outside[result] = path
        home = self._home(path)
        if path == self.root:
            self._open[result] = _Open(self.top, path)
        if home is None:
            return False
        new = path.name not in home.names
        if new:
            assert "O_CREAT" in flags, path
            home.change({path.name: File()})
        node = home.names[path.name]
        if "O_TRUNC" in flags and isinstance(node, File):
            node.content = b""
        self._open[result] = _Open(node, path, append="O_APPEND" in flags)
        return new or "O_TRUNC" in flags

    def _do_close(self, words: list[str], _: int) -> bool:
        self._open.pop(int(words[0]), None)
        return False

    def _do_dup(self, words: list[str], result: int) -> bool:
        if int(words[0]) in self._open:
            self._open[result] = self._open[int(words[0])]
        return False

    def _do_fcntl(self, words: list[str], result: int) -> bool:
        return self._do_dup(words, result) if "DUPFD" in words[1] else False

    def _do_lseek(self, words: list[str], result: int) -> bool:
        if int(words[0]) in self._open:
            self._open[int(words[0])].place = result
        return False

    def _do_write(self, words: list[str], result: int) -> bool:
        file = self._open.get(int(words[0]))
        if file is None or not isinstance(file.node, File):
            return False
        if file.append:
            file.place = len(file.node.content)
        self._put(file.node, file.place, _text(words[1])[:result])
        file.place += result
        return True

    def _do_pwrite64(self, words: list[str], result: int) -> bool:
        file = self._open.get(int(words[0]))
        if file is None or not isinstance(file.node, File):
            return False
        self._put(file.node, int(words[3]), _text(words[1])[:result])
        return True

    def _do_writev(self, words: list[str], result: int) -> bool:
        texts = re.findall(r'iov_base="((?:\\x[0-9a-f]{2})*)"', ", ".join(words))
        joined = f'"{"".join(texts)}"'
        return self._do_write([words[0], joined], result)

    @staticmethod
    def _put(file: File, place: int, data: bytes) -> None:
        padded = file.content.ljust(place, b"\0")
        file.content = padded[:place] + data + padded[place + len(data) :]

    def _do_ftruncate(self, words: list[str], _: int) -> bool:
        file = self._open.get(int(words[0]))
        if file is None or not isinstance(file.node, File):
            return False
        size = int(words[1])
        file.node.content = file.node.content[:size].ljust(size, b"\0")
        return True

    def _do_fsync(self, words: list[str], _: int) -> bool:
        file = self._open.get(int(words[0]))
        if file is None:
            return False
        if isinstance(file.node, File):
            file.node.safe = file.node.content
        else:
            file.node.sync()
        return True

    _do_fdatasync = _do_fsync

    def _make(self, path: Path, node: Node | None) -> bool:
        home = self._home(path)
        if home is not None:
            home.change({path.name: node})
        return home is not None

    def _do_mkdir(self, words: list[str], _: int) -> bool:
        return self._make(self._path(words[0]), Folder())

    def _do_mkdirat(self, words: list[str], _: int) -> bool:
        return self._make(self._path(words[1], words[0]), Folder())

    def _do_unlink(self, words: list[str], _: int) -> bool:
        return self._make(self._path(words[0]), None)

    _do_rmdir = _do_unlink

    def _do_unlinkat(self, words: list[str], _: int) -> bool:
        return self._make(self._path(words[1], words[0]), None)

    def _do_rename(self, words: list[str], _: int) -> bool:
        return self._renamed(self._path(words[0]), self._path(words[1]), exchange=False)

    def _do_renameat2(self, words: list[str], _: int) -> bool:
        old, new = self._path(words[1], words[0]), self._path(words[3], words[2])
        return self._renamed(old, new, exchange="EXCHANGE" in words[-1])

    _do_renameat = _do_renameat2

    def _renamed(self, old: Path, new: Path, *, exchange: bool) -> bool:
        home = self._home(old)
        if home is None:
            return False
        assert self._home(new) is home, "a rename from folder to folder is not modelled"
        other = home.names.get(new.name) if exchange else None
        home.change({new.name: home.names[old.name], old.name: other})
        return True

    def remains(self) -> Iterator[Tree]:
        """All that may be left if the power fails now, up to `_MOST` ways; the worst comes first:
        only what is safe.
        """
        unsafe = [f for f in _folders(self.top) if f.changes]
        ways = itertools.product(*(range(len(folder.changes) + 1) for folder in unsafe))
        for kept in itertools.islice(ways, _MOST):
            counts = dict(zip(map(id, unsafe), kept, strict=True))
            for share in range(3):
                yield dict(_left(self.top, counts, share))


def _folders(node: Node) -> Iterator[Folder]:
    """All folders that are there, were there, or may be."""
    if isinstance(node, Folder):
        yield node
        seen = {id(n): n for n in (*node.safe.values(), *node.names.values())}
        for change in node.changes:
            seen |= {id(n): n for n in change.values() if n is not None}
        for child in seen.values():
            yield from _folders(child)


def _left(folder: Folder, counts: dict[int, int], share: int) -> Iterator[tuple[str, bytes]]:
    names = dict(folder.safe)
    for change in folder.changes[: counts.get(id(folder), 0)]:
        _apply(names, change)
    for name, node in names.items():
        if isinstance(node, File):
            yield name, node.remains(share)
        else:
            yield f"{name}/", b""
            yield from ((f"{name}/{path}", text) for path, text in _left(node, counts, share))


def write_tree(tree: Tree, root: Path) -> None:
    """On the real disk."""
    root.mkdir()
    for path, content in tree.items():
        if path.endswith("/"):
            (root / path).mkdir(parents=True, exist_ok=True)
        else:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)


def traced(script: str, root: Path, home: Path) -> list[tuple[str, list[str], int]]:
    """The calls of a Python process that runs `script` with `root` as its argument."""
    log = home / "trace"
    home.mkdir(exist_ok=True)
    strace = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-xx",
        "-s",
        "100000000",
        "-e",
        f"trace={CALLS}",
        "-o",
    ]
    command = [*strace, str(log), sys.executable, "-c", script, str(root)]
    done = subprocess.run(
        command, check=False, env=environment(home), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return list(_calls(log))


def _calls(log: Path) -> Iterator[tuple[str, list[str], int]]:
    begun: dict[str, str] = {}
    with log.open() as lines:
        for raw in lines:
            pid, _, line = raw.rstrip("\n").partition(" ")
            line = line.strip()
            if line.endswith("<unfinished ...>"):
                begun[pid] = line.removesuffix("<unfinished ...>")
                continue
            if resumed := re.match(r"<\.\.\. \w+ resumed>", line):
                line = begun.pop(pid) + line[resumed.end() :]
            found = _LINE.match(f"{pid} {line}")
            if found and found[4] != "?":
                yield found[2], _words(found[3]), int(found[4])


def _words(text: str) -> list[str]:
    """Between the commas; with -xx no text holds one."""
    return [word.strip() for word in text.split(",")]


def _text(word: str) -> bytes:
    return bytes.fromhex(word.strip('"').replace("\\x", ""))
