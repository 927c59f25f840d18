"""`python -m campaign`: run the attacks, print the table, exit with 1 if anything failed."""

import argparse
import importlib
import pkgutil
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import campaign
import fewgraft
from campaign.attack import Attack, Trial

BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"


@dataclass(frozen=True)
class Result:
    """An attack that was run."""

    attack: Attack
    trial: Trial
    seconds: float


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
    return Result(attack, trial, time.monotonic() - start)


def table(results: list[Result]) -> str:
    """The results as Markdown."""
    rows = ["| attack | promise | tried | failed |", "|---|---|---:|---:|"]
    for one in results:
        notes = f" ({'; '.join(one.trial.notes)})" if one.trial.notes else ""
        rows.append(
            f"| {one.attack.name} | {one.attack.promise}{notes} "
            f"| {one.trial.tried:,} | {one.trial.failed:,} |"
        )
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
    parser.add_argument("--list", action="store_true", help="name the attacks and exit")
    asked = parser.parse_args()
    wanted = [a for a in attacks() if not asked.only or any(word in a.name for word in asked.only)]
    if asked.list:
        print("\n".join(f"{attack.name}: {attack.promise}" for attack in wanted))
        return 0
    results = []
    for attack in wanted:
        one = run(attack, asked.scale, asked.seed)
        results.append(one)
        print(
            f"{attack.name}: {one.trial.tried:,} tried, {one.trial.failed:,} failed, "
            f"{one.seconds:.0f} s",
            flush=True,
        )
        for failure in one.trial.failures:
            print(f"  {failure}", flush=True)
    print("\n" + table(results))
    if asked.write:
        write_into(asked.write, results, asked.scale, asked.seed)
    return int(any(one.trial.failed for one in results))


if __name__ == "__main__":
    sys.exit(main())
