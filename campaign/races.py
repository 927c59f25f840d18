"""Several processes at once on one folder, one file or one run."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from campaign.attack import Attack, Said, Trial, environment, fewgraft
from campaign.kills import BACKBONE, BENCH, Words, rows, scores
from campaign.material import RECIPE, contents, leftovers, make_colours, make_photos
from fewgraft.data.catalogue import open_data
from fewgraft.data.store import verify_store

_REPLACE = """
import sys
from pathlib import Path
from fewgraft.data.catalogue import add_data
while True:
    for source in sys.argv[2:]:
        add_data("mine", Path(source), root=Path(sys.argv[1]))
"""


def together(commands: Sequence[Words], home: Path, *, apart: float = 0.0) -> list[Said]:
    """Run commands at the same time, each begun `apart` seconds after the one before."""
    running = []
    for words in commands:
        running.append(
            subprocess.Popen(
                [sys.executable, "-P", "-m", "fewgraft", *map(str, words)],
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        time.sleep(apart)
    told = [process.communicate(timeout=900) for process in running]
    return [Said(p.returncode, *text) for p, text in zip(running, told, strict=True)]


def _writers(trial: Trial) -> None:
    """Several of the same command into one target: all end in words, one of them is there whole."""
    photos, home = trial.folder / "photos", trial.folder / "home"
    make_photos(photos)
    (trial.folder / "other").mkdir()
    shutil.copytree(photos / "old", trial.folder / "other" / "old")
    next((trial.folder / "other").rglob("*.png")).unlink()
    next((photos / "inbox").iterdir()).rename(trial.folder / "other" / "photo.png")
    sources = [photos, trial.folder / "other"]
    here = trial.folder / "here"
    kinds: dict[str, list[Words]] = {
        "data add": (
            [["data", "add", "mine", "--from", s / "old", "--root", here / "out"] for s in sources]
        ),
        "base": [
            ["base", s / "old", "--backbone", BACKBONE, "--out", here / "out"] for s in sources
        ],
        "predict": [
            ["predict", "icons", p, "--csv", here / "out"]
            for p in (photos / "inbox", trial.folder / "other" / "photo.png")
        ],
    }
    for number in trial.rounds(4 * len(kinds), "writers at once"):
        name = list(kinds)[number % len(kinds)]
        wanted = []
        for words in kinds[name]:
            said = fewgraft(*words, home=home)
            trial.check(said.code == 0, f"{words}: {said.err[-500:]}")
            wanted.append(contents(here))
            shutil.rmtree(here)
        here.mkdir()
        told = together(kinds[name] * 2, home, apart=trial.random.uniform(0, 0.05))
        for said in told:
            trial.check(said.clean, f"{name}: {said.err[-500:]}")
        trial.check(any(said.code == 0 for said in told), f"{name}: none was done")
        trial.check(contents(here) in wanted, f"{name}: mixed")
        trial.check(not leftovers(here), f"{name}: {leftovers(here)}")
        shutil.rmtree(here)


def _readers(trial: Trial) -> None:
    """A store that is replaced again and again is whole whenever it is opened."""
    photos, home = trial.folder / "photos", trial.folder / "home"
    make_photos(photos)
    other = trial.folder / "other"
    shutil.copytree(photos / "old", other)
    paths = sorted(path for path in other.rglob("*.png"))
    for path, content in zip(paths, [p.read_bytes() for p in reversed(paths)], strict=True):
        path.write_bytes(content)  # as many pictures, in other places
    root = trial.folder / "stores"
    command = [sys.executable, "-c", _REPLACE, str(root), str(photos / "old"), str(other)]
    writers = [
        subprocess.Popen(command, env=environment(home), stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    while not (root / "mine").exists():
        time.sleep(0.05)
    try:
        for _ in trial.rounds(600, "readers at once"):
            try:
                verify_store(open_data("mine", root))
                trial.check(True, "")
            except Exception as error:
                trial.check(False, f"{type(error).__name__}: {error}")
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


def _bench(trial: Trial) -> None:
    """Three runs on one folder, one of which is killed."""
    home, here, whole = (trial.folder / name for name in ("home", "here", "whole"))
    methods = ["--methods", "nearest-prototype,meta-inc-baseline,+pr,proposed"]
    words = [*BENCH[:-1], "incremental,s2i", *methods, "--out"]
    said = fewgraft(*words, whole, home=home)
    trial.check(said.code == 0, said.err[-500:])
    for _ in trial.rounds(4, "benches at once"):
        command = [sys.executable, "-P", "-m", "fewgraft", *map(str, words), str(here)]
        victim = subprocess.Popen(
            command, env=environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(trial.random.uniform(1, 4))
        told = together([[*words, here]], home) if trial.random.random() < 0.3 else None
        victim.kill()
        victim.wait()
        told = told or together([[*words, here]] * 2, home)
        for one in told:
            trial.check(one.code == 0, f"bench run: {one.err[-500:]}")
        same = rows(here) == rows(whole) and scores(here) == scores(whole)
        trial.check(same, f"{sorted(scores(here))} and not {sorted(scores(whole))}")
        names = [json.loads(line)["id"] for line in (here / "results.jsonl").open()]
        trial.check(len(names) == len(set(names)), f"rows twice: {names}")
        shutil.rmtree(here)


def _train(trial: Trial) -> None:
    """Of several runs in one folder one trains; the others say so, and spoil nothing."""
    home, recipe = trial.folder / "home", trial.folder / "small.toml"
    make_colours(trial.folder / "pictures", home / "data")
    recipe.write_text(RECIPE)
    here, whole = trial.folder / "here", trial.folder / "whole"
    said = fewgraft("train", recipe, "--out", whole, home=home)
    trial.check(said.code == 0, said.err[-500:])
    for _ in trial.rounds(6, "trainings at once"):
        words: Words = ["train", recipe, "--out", here, "--resume"]
        other = [*words, "--set", "seed=7"]
        told = together([words, words, other], home, apart=trial.random.uniform(0, 1))
        for one in told:
            trial.check(one.clean, one.err[-500:])
        if told[2].code == 0:  # it came first
            said = fewgraft(*words, home=home)
            trial.check("seed: 7 then, 0 now" in said.err, said.err[-500:])
        else:
            said = fewgraft(*words, home=home)
            same = said.code == 0 and contents(here) == contents(whole)
            trial.check(same, f"other content: {said.err[-500:]}")
        shutil.rmtree(here)


ATTACKS = (
    Attack("races: writers", "one of them whole, all end in words", _writers),
    Attack("races: readers", "a store is whole while it is replaced", _readers),
    Attack("races: bench run", "shared work, each row once, whoever is killed", _bench, False),
    Attack("races: train", "one trains, the others are told", _train, False),
)
