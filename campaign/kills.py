"""Commands that are killed at random moments; then the next one clears, and the same one succeeds.

Half of the kills come by the clock. The other half come at a random one of the calls that change
the disk (strace kills the process as it makes the call), where a clock hardly ever hits.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.attack import Attack, Trial, environment, fewgraft
from campaign.material import RECIPE, contents, leftovers, make_colours, make_photos
from fewgraft.zoo import ZOO

CALLS = "rename,renameat2,fsync,mkdir,unlink,unlinkat,rmdir,symlink,ftruncate,flock"

BACKBONE = ZOO / "icons" / "algorithm-2"

Words = Sequence["str | Path"]


@dataclass(frozen=True)
class Once:
    """A command that was let alone: how long it took, and which calls it made, in their order."""

    seconds: float
    calls: Sequence[str]


def let_alone(trial: Trial, *words: "str | Path") -> Once:
    """Run a command to its end under strace, which counts."""
    log = trial.folder / "calls"
    home = trial.folder / "home"
    start = time.monotonic()
    said = fewgraft(*words, home=home, before=_strace(f"trace={CALLS}", log))
    seconds = time.monotonic() - start
    trial.check(said.code == 0, f"{words}: {said.err[-500:]}")
    made = re.findall(r"^(\d+) +(\w+)\(", log.read_text(), re.MULTILINE)
    return Once(seconds, [call for pid, call in made if pid == made[0][0]])


def _strace(what: str, log: Path) -> list[str]:
    return ["strace", "-f", "--seccomp-bpf", "-qq", "-o", str(log), "-e", what]


def kill(trial: Trial, once: Once, *words: "str | Path") -> bool:
    """Run a command and kill it at a random moment; whether that came before its end."""
    home = trial.folder / "home"
    command = [sys.executable, "-P", "-m", "fewgraft", *map(str, words)]
    by_call = trial.random.random() < 0.5
    if by_call:
        place = trial.random.randrange(len(once.calls))
        call = once.calls[place]
        when = once.calls[: place + 1].count(call)
        inject = ["-e", f"inject={call}:signal=KILL:when={when}"]
        command = [*_strace(f"trace={call}", Path("/dev/null")), *inject, *command]
    process = subprocess.Popen(
        command,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        process.wait(None if by_call else trial.random.uniform(0.1, 1.05) * once.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait() != 0


def cleared(trial: Trial, words: Words) -> None:
    """Any command clears what the killed one left."""
    said = fewgraft("bench", "methods", home=trial.folder / "home")
    left = [*leftovers(trial.folder), *(trial.folder / "home").glob("in-work/*")]
    trial.check(said.code == 0 and not left, f"{words}: left {left}, {said.err}")


def _tool(name: str, words: Callable[[Path, Path], Words], rounds: int) -> Attack:
    """A command that writes one thing, where nothing was before."""

    def run(trial: Trial) -> None:
        photos, whole = trial.folder / "photos", trial.folder / "whole"
        make_photos(photos)
        once = let_alone(trial, *words(photos, whole))
        wanted, early = contents(whole), 0
        for _ in trial.rounds(rounds, f"kills of {name}"):
            out = trial.folder / "out"
            command = words(photos, out)
            early += kill(trial, once, *command)
            told = f"{command}: part of it is there"
            trial.check(not out.exists() or contents(out) == wanted, told)
            cleared(trial, command)
            if not out.exists():
                said = fewgraft(*command, home=trial.folder / "home")
                same = said.code == 0 and contents(out) == wanted
                trial.check(same, f"{command}, again: {said.err[-500:]}")
            shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        trial.notes.append(f"{early} killed before the end")

    return Attack(f"kills: {name}", "whole or absent, cleared, and the same when run again", run)


def _data_add(trial: Trial) -> None:
    """One store replaced by another, which is a link as often as not."""
    photos, root = trial.folder / "photos", trial.folder / "stores"
    make_photos(photos)
    shutil.copytree(photos / "old", trial.folder / "fewer", symlinks=True)
    next((trial.folder / "fewer").rglob("*.png")).unlink()
    sources = [photos / "old", trial.folder / "fewer"]
    wanted = []
    for source in sources:
        once = let_alone(trial, "data", "add", "mine", "--from", source, "--root", root)
        wanted.append(contents(root / "mine"))
    early = 0
    for number in trial.rounds(60, "kills of data add"):
        if number % 10 == 5:
            (root / "mine").rename(trial.folder / f"store {number}")
            (root / "mine").symlink_to(trial.folder / f"store {number}")
        words: Words = ["data", "add", "mine", "--from", sources[number % 2], "--root", root]
        early += kill(trial, once, *words)
        trial.check(contents(root / "mine") in wanted, f"{words}: neither old nor new")
        cleared(trial, words)
        said = fewgraft(*words, home=trial.folder / "home")
        same = said.code == 0 and contents(root / "mine") == wanted[number % 2]
        trial.check(same, f"{words}, again: {said.err[-500:]}")
    trial.notes.append(f"{early} killed before the end")


def _train(trial: Trial) -> None:
    """All three stages, killed again and again, against a run that was let alone."""
    home, recipe = trial.folder / "home", trial.folder / "small.toml"
    make_colours(trial.folder / "pictures", home / "data")
    recipe.write_text(RECIPE)
    whole, cut = trial.folder / "whole", trial.folder / "cut"
    once = let_alone(trial, "train", recipe, "--out", whole)
    wanted, early = contents(whole), 0
    words: Words = ["train", recipe, "--out", cut, "--resume"]
    for _ in trial.rounds(12, "kills of train"):
        for _ in range(trial.random.randint(1, 3)):
            early += kill(trial, once, *words)
            cleared(trial, words)
        said = fewgraft(*words, home=home)
        found = contents(cut)
        different = [name for name in wanted if found.get(name) != wanted[name]]
        trial.check(said.code == 0 and not different, f"{words}: {different} {said.err[-500:]}")
        said = fewgraft(*words, "--set", "seed=7", home=home)
        named = said.code == 2 and "seed: 0 then, 7 now" in said.err and contents(cut) == found
        trial.check(named, f"{words} with another seed: {said.code} {said.err[-500:]}")
        shutil.rmtree(cut)
    trial.notes.append(f"{early} killed before the end")


BENCH: Words = ["bench", "run", "icons", "--shots", "1", "--episodes", "10", "--settings", "s2i"]


def rows(folder: Path) -> list[str]:
    """All lines of results, without what depends on the moment."""
    text = (folder / "results.jsonl").read_text()
    return sorted(
        re.sub(r'"(seconds|machine)":("[^"]*"|[\d.]+)', "", line) for line in text.splitlines()
    )


def scores(folder: Path) -> dict[str, bytes]:
    """All that is below scores."""
    return contents(folder / "scores")


def _bench(trial: Trial) -> None:
    """Quick rows, and slow ones that keep their chunks."""
    methods = ["--methods", "+pr,+fixmatch,proposed"]
    whole, cut = trial.folder / "whole", trial.folder / "cut"
    once = let_alone(trial, *BENCH, *methods, "--out", whole)
    wanted, early = (rows(whole), scores(whole)), 0
    words: Words = [*BENCH, *methods, "--out", cut]
    for _ in trial.rounds(6, "kills of bench run"):
        for _ in range(trial.random.randint(1, 3)):
            early += kill(trial, once, *words)
            cleared(trial, words)
        said = fewgraft(*words, home=trial.folder / "home")
        same = said.code == 0 and (rows(cut), scores(cut)) == wanted
        trial.check(same, f"{words}: {list(scores(cut))} {said.err[-500:]}")
        shutil.rmtree(cut)
    trial.notes.append(f"{early} killed before the end")


ATTACKS = (
    Attack("kills: data add", "the old store or the new, cleared, links stay", _data_add),
    _tool(
        "base",
        lambda photos, out: ["base", photos / "old", "--backbone", BACKBONE, "--out", out],
        15,
    ),
    _tool(
        "learn",
        lambda photos, out: [
            *("learn", "icons", "--new", photos / "new"),
            *("--unlabelled", photos / "pile", "--out", out),
        ],
        20,
    ),
    _tool(
        "predict --csv",
        lambda photos, out: ["predict", "icons", photos / "inbox", "--csv", out],
        15,
    ),
    _tool("export", lambda _, out: ["export", "icons", out], 10),
    Attack("kills: train", "resumed to the same bits, refused with another seed", _train, False),
    Attack("kills: bench run", "each row once, the same bits, no parts left", _bench, False),
)
