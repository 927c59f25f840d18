"""Damaged files of every kind, to every reader; and to the command itself.

The readers run in a process of their own (`python -m campaign.readers`), so that one which crashes
or takes all the memory is found out and ends nothing else.
"""

import json
import resource
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from campaign.attack import Attack, Trial, environment, fewgraft
from campaign.mutation import damaged
from fewgraft.errors import FewgraftError

INPUTS = 800  # of a reader of weight 1, at scale 1
MOST_MEMORY = 1 << 20  # KB beyond what the process had before
SLOWEST = 30.0  # seconds


class Damage:
    """A folder of valid files, of which one at a time is damaged."""

    def __init__(self, folder: Path, make: Callable[[Path], object], pattern: str = "*") -> None:
        folder.mkdir(parents=True)
        make(folder)
        self.folder = folder
        pattern = pattern if "/" in pattern or "." in pattern else f"**/{pattern}"
        found = sorted(path for path in folder.glob(pattern) if path.is_file())
        self._files = {path: path.read_bytes() for path in found}

    def inputs(self, random: Random, count: int) -> Iterator[str]:
        """Damage one file, say which, and mend it again."""
        for _ in range(count):
            path = random.choice(list(self._files))
            path.write_bytes(damaged(self._files[path], path.name, random))
            yield path.name
            for mended, content in self._files.items():
                if mended == path or not mended.exists():
                    mended.parent.mkdir(parents=True, exist_ok=True)
                    mended.write_bytes(content)


def why_not_clean(read: Callable[[Path], object], folder: Path) -> str:
    """Nothing if a reader reads or refuses the folder; else what it did instead."""
    before, start = _peak(), time.monotonic()
    try:
        read(folder)
    except FewgraftError:
        pass
    except BaseException:
        return traceback.format_exc()[-1500:]
    grown, seconds = _peak() - before, time.monotonic() - start
    if grown > MOST_MEMORY:
        return f"it took {grown >> 10} MB"
    return f"it took {seconds:.0f} s" if seconds > SLOWEST else ""


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _child(names: list[str], seed: str, share: float, work: Path) -> None:
    """Each reader in turn; a line for each input, written before it is read."""
    from campaign.kinds import READERS

    for reader in READERS:
        if reader.name not in names:
            continue
        damage = Damage(work / reader.name, reader.make, reader.damaged)
        why = why_not_clean(_strictly(reader.read), damage.folder)
        print(json.dumps([reader.name, "the valid file", why]), flush=True)
        count = max(1, round(INPUTS * reader.weight * share))
        for number, file in enumerate(damage.inputs(Random(f"{seed} {reader.name}"), count)):
            print(json.dumps([reader.name, f"{file}, input {number}"]), flush=True)
            why = why_not_clean(reader.read, damage.folder)
            print(json.dumps([reader.name, f"{file}, input {number}", why]), flush=True)


def _strictly(read: Callable[[Path], object]) -> Callable[[Path], object]:
    """A refusal of the valid file is a failure as well."""

    def strict(folder: Path) -> None:
        try:
            read(folder)
        except FewgraftError as refused:
            raise AssertionError(f"refused: {refused}") from None

    return strict


def _attack(*names: str) -> Callable[[Trial], None]:
    def run(trial: Trial) -> None:
        seed = str(trial.random.getrandbits(32))
        words = ["-m", "campaign.readers", ",".join(names), seed, str(trial.scale)]
        child = subprocess.Popen(
            [sys.executable, *words, str(trial.folder / "work")],
            stdout=subprocess.PIPE,
            stderr=(trial.folder / "errors").open("wb"),
            text=True,
            env=environment(trial.folder / "home"),
        )
        assert child.stdout is not None
        last = ["", "its start"]
        for line in child.stdout:
            last = json.loads(line)
            if len(last) == 3:
                trial.check(not last[2], ": ".join(last))
        if child.wait() != 0:
            errors = (trial.folder / "errors").read_text(errors="replace")[-1000:]
            trial.check(False, f"ended with {child.returncode} at {': '.join(last[:2])}: {errors}")

    return run


# --- the command ---

COMMANDS: dict[str, tuple[str, ...]] = {
    "CIFAR-100 as parquet": ("data", "add", "cifar-fs", "--from", "{f}"),
    "CIFAR-100 as pickles": ("data", "add", "cifar-fs", "--from", "{f}"),
    "mini-ImageNet as pickles": ("data", "add", "mini-imagenet", "--from", "{f}"),
    "tiered-ImageNet as npz": ("data", "add", "tiered-imagenet", "--from", "{f}"),
    "split by class": ("data", "add", "x", "--from", "{f}/photos", "--split", "{f}/s.csv"),
    "table of photos": ("base", "{f}/photos.csv", "--backbone", "{model}", "--out", "{out}"),
    "list of photos": ("predict", "icons", "{f}/pile.txt"),
    "data set": ("data", "verify", "s", "--root", "{f}"),
    "model": ("predict", "{f}/m", "{photo}"),
    "model on an ONNX file": ("predict", "{f}/m", "{photo}"),
    "ONNX network": ("base", "{photos}", "--backbone", "onnx:{f}/network.onnx", "--out", "{out}"),
    "head in safetensors": (
        *("base", "--backbone", "{model}", "--head", "{f}/head.safetensors"),
        *("--names", "{f}/names.txt", "--out", "{out}"),
    ),
    "recipe": ("bench", "tsne", "{f}/recipe.toml", "--models", "{f}", "--out", "{out}"),
    "results": ("bench", "table", "{f}", "--layout", "all"),
}
COMMAND_MEMORY = 2 << 20  # KB, of which the libraries need a half


def _commands(trial: Trial) -> None:
    from campaign.kinds import READERS
    from campaign.layouts import photo_tree

    readers = [reader for reader in READERS if reader.name in COMMANDS]
    damages = {
        reader.name: Damage(trial.folder / reader.name, reader.make, reader.damaged)
        for reader in readers
    }
    photos = photo_tree(trial.folder / "photos", 2, 2)
    model = trial.folder / "kept"
    shutil.copytree(damages["model"].folder / "m", model)
    for number in trial.rounds(84, "commands"):
        name = list(COMMANDS)[number % len(COMMANDS)]
        damage, out = damages[name], trial.folder / f"out {number}"
        for file in damage.inputs(trial.random, 1):
            places = {"f": damage.folder, "out": out, "photos": photos, "model": model}
            words = [w.format(**places, photo=next(photos.rglob("*.png"))) for w in COMMANDS[name]]
            before = _children_peak()
            said = fewgraft(*words, home=trial.folder / "home")
            trial.check(said.clean, f"{words[0]}, {name}, {file}: {said.code} {said.err[-800:]}")
            peak = _children_peak()
            trial.check(
                peak <= max(before, COMMAND_MEMORY), f"{words[0]}, {name}, {file}: {peak >> 10} MB"
            )


def _children_peak() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


PROMISE = "read, or refused in words; at most 1 GB more memory"
ATTACKS = (
    Attack(
        "damaged sources and data sets",
        PROMISE,
        _attack(
            "CIFAR-100 as parquet",
            "CIFAR-100 as pickles",
            "mini-ImageNet as pickles",
            "mini-ImageNet as tables",
            "tiered-ImageNet as PNG",
            "tiered-ImageNet as npz",
            "split by TOML",
            "split by class",
            "split by picture",
            "table of photos",
            "table by semicolons",
            "list of photos",
            "data set",
        ),
    ),
    Attack(
        "damaged models and networks",
        PROMISE,
        _attack(
            "model",
            "model on a transformer",
            "model on an ONNX file",
            "folder of transformers",
            "ONNX network",
            "head in safetensors",
            "head in PyTorch's file",
            "head in PyTorch's old file",
            "head in ONNX",
        ),
    ),
    Attack(
        "damaged recipes, runs and results",
        PROMISE,
        _attack(
            "recipe",
            "changes to a recipe",
            "checkpoint",
            "log",
            "results",
            "features of a data set",
            "features of photos",
            "figure",
        ),
    ),
    Attack("damaged files at the command line", "exit 0 or 2, no traceback, < 2 GB", _commands),
)

if __name__ == "__main__":
    _child(sys.argv[1].split(","), sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
