"""Disks that are full or read-only, and clocks that are set: words and code 2, nothing lost.

Mounting a small disk needs root; without that these attacks break off.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from campaign.attack import Attack, Said, Trial, fewgraft
from campaign.kills import BACKBONE, Words
from campaign.material import RECIPE, contents, leftovers, make_colours, make_photos

# Root may write anywhere; without these rights it obeys the permissions of files like anybody.
RIGHTS = "-dac_override,-dac_read_search"
OBEYING = ("setpriv", f"--bounding-set={RIGHTS}", f"--inh-caps={RIGHTS}")


@dataclass(frozen=True)
class Command:
    """A command that writes `out`; `{photos}`, `{here}` and `{out}` stand for paths."""

    name: str
    words: str
    out: str

    def __call__(self, photos: Path, here: Path) -> Words:
        """The words of the command."""
        places = {"photos": photos, "here": here, "out": here / self.out, "backbone": BACKBONE}
        return [word.format(**places) for word in self.words.split()]


COMMANDS = (
    Command("data add", "data add mine --from {photos}/old --root {here}/stores", "stores/mine"),
    Command("base", "base {photos}/old --backbone {backbone} --out {out}", "v1"),
    Command("learn", "learn icons --new {photos}/new --unlabelled {photos}/pile --out {out}", "v2"),
    Command("predict", "predict icons {photos}/inbox --csv {out}", "table.csv"),
    Command("export", "export icons {out}", "model.onnx"),
    Command("train", "train {photos}/small.toml --resume --out {out}", "run"),
    Command(
        "bench run",
        "bench run icons --methods +pr --settings s2i --shots 1 --episodes 10 --out {out}",
        "results",
    ),
)


def _prepare(trial: Trial) -> tuple[Path, Path]:
    """Photos with a recipe, and a home with a store."""
    photos, home = trial.folder / "photos", trial.folder / "home"
    make_photos(photos)
    make_colours(trial.folder / "colours", home / "data")
    (photos / "small.toml").write_text(RECIPE)
    return photos, home


@contextlib.contextmanager
def small_disk(where: Path, kilobytes: int) -> Iterator[Path]:
    """A disk of this size."""
    where.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=777", "none", str(where)],
        check=True,
    )
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)
        where.rmdir()


def _told(trial: Trial, name: str, said: Said) -> None:
    words = said.code == 2 and said.clean and "error: " in said.err
    trial.check(words, f"{name}: code {said.code}, {said.err[-600:]}")


def _size(tree: dict[str, bytes]) -> int:
    return sum(map(len, tree.values())) // 1024


def _full(trial: Trial) -> None:
    """A disk with less room than the command needs; then with enough."""
    photos, home = _prepare(trial)
    sizes: dict[str, int] = {}
    for number in trial.rounds(3 * len(COMMANDS), "full disks"):
        command = COMMANDS[number % len(COMMANDS)]
        if command.name not in sizes:
            here = trial.folder / "enough"
            said = fewgraft(*command(photos, here), home=home)
            trial.check(said.code == 0, f"{command.name}: {said.err[-600:]}")
            sizes[command.name] = max(8, _size(contents(here)))
            shutil.rmtree(here)
        room = max(4, int(trial.random.uniform(0.02, 0.9) * sizes[command.name]))
        with small_disk(trial.folder / "small", room) as here:
            (here / "mine").write_text("kept")
            words = command(photos, here)
            said = fewgraft(*words, home=home)
            if said.code == 0:  # what lies on a disk may take less room than what is written
                continue
            _told(trial, f"{command.name} on {room} KB", said)
            trial.check((here / "mine").read_text() == "kept", f"{command.name}: a file was lost")
            trial.check(not leftovers(here), f"{command.name}: left {leftovers(here)}")
            grow = ["mount", "-o", f"remount,size={8 * sizes[command.name] + 4096}k", str(here)]
            subprocess.run(grow, check=True)
            said = fewgraft(*words, home=home)
            trial.check(said.code == 0, f"{command.name} with room: {said.err[-600:]}")


def _full_home(trial: Trial) -> None:
    """The disk with features and lists is full: that costs time, no result."""
    photos, _ = _prepare(trial)
    for number in trial.rounds(6, "full homes"):
        command = [COMMANDS[i] for i in (1, 2, 3)][number % 3]
        here = trial.folder / "out"
        with small_disk(trial.folder / "home of 4 KB", 4) as home:
            (home / "filler").write_bytes(bytes(4096))
            said = fewgraft(*command(photos, here), home=home)
        trial.check(said.code == 0, f"{command.name}: {said.err[-600:]}")
        trial.check(not leftovers(trial.folder), f"{command.name}: {leftovers(trial.folder)}")
        shutil.rmtree(here)


def _read_only(trial: Trial) -> None:
    """Whoever may not write is told; what was there stays, and all is well once one may."""
    photos, home = _prepare(trial)
    for number in trial.rounds(2 * len(COMMANDS), "read-only folders"):
        command = COMMANDS[number % len(COMMANDS)]
        here = trial.folder / "here"
        (here / "stores").mkdir(parents=True)
        (here / "mine").write_text("kept")
        words, before = command(photos, here), contents(here)
        with _only_read(here):
            said = fewgraft(*words, home=home, before=_obeying())
        _told(trial, f"{command.name} in a read-only folder", said)
        trial.check(contents(here) == before, f"{command.name}: {list(contents(here))}")
        said = fewgraft(*words, home=home)
        trial.check(said.code == 0, f"{command.name} afterwards: {said.err[-600:]}")
        shutil.rmtree(here)


def _read_only_home(trial: Trial) -> None:
    """A home that one may only read costs time, no result."""
    photos, home = _prepare(trial)
    for number in trial.rounds(len(COMMANDS) - 2, "read-only homes"):
        command = COMMANDS[1 + number]
        here = trial.folder / "here"
        here.mkdir()
        before = contents(home)
        with _only_read(home):
            said = fewgraft(*command(photos, here), home=home, before=_obeying())
        trial.check(said.code == 0, f"{command.name}: {said.err[-600:]}")
        trial.check(contents(home) == before, f"{command.name}: {list(contents(home))}")
        trial.check(not leftovers(here), f"{command.name}: {leftovers(here)}")
        shutil.rmtree(here)


@contextlib.contextmanager
def _only_read(folder: Path) -> Iterator[None]:
    paths = [folder, *folder.rglob("*")]
    modes = [path.stat().st_mode for path in paths]
    for path, mode in zip(paths, modes, strict=True):
        path.chmod(mode & ~0o222)
    try:
        yield
    finally:
        for path, mode in zip(paths, modes, strict=True):
            path.chmod(mode)


def _obeying() -> tuple[str, ...]:
    return OBEYING if os.geteuid() == 0 else ()


def _clocks(trial: Trial) -> None:
    """A run that is cut and goes on years before, or after, ends as if nothing had been."""
    photos, home = _prepare(trial)
    for number in trial.rounds(2 * len(COMMANDS), "clocks that are set"):
        command = COMMANDS[number % len(COMMANDS)]
        when = trial.random.choice(["1999-12-31 23:59:58", "2037-06-01 00:00:00", "-10y", "+3y"])
        whole, here = trial.folder / "whole", trial.folder / "here"
        said = fewgraft(*command(photos, whole), home=home)
        trial.check(said.code == 0, f"{command.name}: {said.err[-600:]}")
        words = command(photos, here)
        if command.name == "train":  # one stage by one clock, the others by another
            fewgraft(*words, "--stage", "pre-trained", home=home)
        said = fewgraft(*words, home=home, before=("faketime", "-f", *_time(when)))
        trial.check(said.code == 0, f"{command.name} at {when}: {said.err[-600:]}")
        same = command.name == "bench run" or _undated(here, command) == _undated(whole, command)
        trial.check(same, f"{command.name} at {when}: other content")
        shutil.rmtree(whole)
        shutil.rmtree(here)


def _undated(folder: Path, command: Command) -> dict[str, bytes]:
    """All but what says on which day a lesson was."""
    dated = ("model.json", "report.html") if command.name == "learn" else ()
    found = contents(folder)
    return {name: found[name] for name in found if Path(name).name not in dated}


def _time(when: str) -> list[str]:
    """As faketime wants it: from an absolute time the clock goes on."""
    return [when if when[0] in "+-" else f"@{when}"]


ATTACKS = (
    Attack("full disk", "words and code 2, nothing lost, and done when there is room", _full),
    Attack("full home", "done all the same", _full_home),
    Attack("read-only folder", "words and code 2, nothing changed", _read_only),
    Attack("read-only home", "done all the same", _read_only_home),
    Attack("clock that is set", "the same content at any time", _clocks),
)
