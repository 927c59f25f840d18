"""`python -m campaign`: run the attacks, print the table, exit with 1 if anything failed."""

import argparse
import importlib
import json
import pkgutil
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

import campaign
import fewgraft
from campaign.attack import Attack, Trial

BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


@dataclass(frozen=True)
class Result:
    """An attack that was run."""

    name: str
    promise: str
    tried: int
    failed: int
    notes: tuple[str, ...]
    failures: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        """A line, and one per failure."""
        counts = f"{self.tried:,} tried, {self.failed:,} failed, {self.seconds:.0f} s"
        return "\n  ".join([f"{self.name}: {counts}", *self.failures])


def attacks() -> list[Attack]:
    """All attacks, in the order of their files."""
    names = sorted(module.name for module in pkgutil.iter_modules(campaign.__path__))
    modules = [importlib.import_module(f"campaign.{n}") for n in names if n != "__main__"]
    return [attack for module in modules for attack in getattr(module, "ATTACKS", ())]


def run(attack: Attack, scale: float, seed: int) -> Result:
    """One attack in a folder of its own; an attack that breaks off counts as a failure."""
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    trial = Trial(folder, scale, random.Random(f"{attack.name} {seed}"))
    start = time.monotonic()
    try:
        attack.run(trial)
    except Exception:
        trial.check(False, f"the attack broke off: {traceback.format_exc()}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(
        attack.name,
        attack.promise,
        trial.tried,
        trial.failed,
        tuple(trial.notes),
        tuple(trial.failures),
        time.monotonic() - start,
    )


def run_all(wanted: list[Attack], scale: float, seed: int, log: Path | None) -> list[Result]:
    """Every attack that the log does not have yet; each goes there as soon as it was run."""
    done = {} if log is None else {one.name: one for one in _logged(log)}
    for attack in wanted:
        if attack.name in done:
            continue
        one = done[attack.name] = run(attack, scale, seed)
        print(one, flush=True)
        if log is not None:
            with log.open("a") as file:
                file.write(json.dumps(asdict(one)) + "\n")
    return [done[attack.name] for attack in wanted]


def _logged(log: Path) -> list[Result]:
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = log.read_text().splitlines() if log.exists() else []
    found = [json.loads(line) for line in lines]
    lists = ("notes", "failures")
    return [Result(**{**one, **{name: tuple(one[name]) for name in lists}}) for one in found]


def table(results: list[Result]) -> str:
    """The results as Markdown."""
    rows = ["| attack | promise | tried | failed |", "|---|---|---:|---:|"]
    for one in results:
        notes = f" ({'; '.join(one.notes)})" if one.notes else ""
        rows.append(f"| {one.name} | {one.promise}{notes} | {one.tried:,} | {one.failed:,} |")
    return "\n".join(rows)


def write_into(page: Path, results: list[Result], scale: float, seed: int) -> None:
    """Put the table between the two marks of a page."""
    minutes = sum(one.seconds for one in results) / 60
    head = (
        f"Fewgraft {fewgraft.__version__}, seed {seed}, scale {scale:g}, {minutes:.0f} minutes "
        f"on two cores (`make campaign`):"
    )
    block = f"{BEGIN}\n{head}\n\n{table(results)}\n{END}"
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    page.write_text(pattern.sub(lambda _: block, page.read_text()))


def main() -> int:
    """Parse the words of the command and run."""
    parser = argparse.ArgumentParser(prog="python -m campaign", description=campaign.__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="1 is the whole campaign")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", help="attacks whose names contain this")
    parser.add_argument("--write", type=Path, help="a page to put the table into")
    parser.add_argument("--log", type=Path, help="goes on from here where it was broken off")
    parser.add_argument("--list", action="store_true", help="name the attacks and exit")
    asked = parser.parse_args()
    wanted = [a for a in attacks() if not asked.only or any(word in a.name for word in asked.only)]
    if asked.list:
        print("\n".join(f"{attack.name}: {attack.promise}" for attack in wanted))
        return 0
    results = run_all(wanted, asked.scale, asked.seed, asked.log)
    print("\n" + table(results))
    if asked.write:
        write_into(asked.write, results, asked.scale, asked.seed)
        if asked.log:
            asked.log.unlink(missing_ok=True)  # the next campaign starts anew
    return int(any(one.failed for one in results))


if __name__ == "__main__":
    sys.exit(main())
