"""Processes of a Ray cluster that are killed while they compute."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

from campaign.attack import Attack, Said, Trial, environment, fewgraft
from campaign.kills import Words, rows, scores

RUN: Words = [
    "bench",
    "run",
    "icons",
    "--settings",
    "s2i",
    "--shots",
    "1",
    "--methods",
    "+pr,+pr+bias",
]
VICTIMS = ("ray::Worker", "raylet", "gcs_server")


def _killed(trial: Trial, victim: str, words: Words) -> Said:
    """Kill one process of this name as soon as there are workers; how the command ends."""
    command = [sys.executable, "-P", "-m", "fewgraft", *map(str, words)]
    log = trial.folder / "log"
    with log.open("w") as told:
        process = subprocess.Popen(
            command,
            env=environment(trial.folder / "home"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=told,
        )
        while process.poll() is None and "is ready" not in log.read_text():
            time.sleep(0.05)
        time.sleep(trial.random.uniform(0, 1))
        family = psutil.Process(process.pid).children(recursive=True)
        for member in [one for one in family if _name(one).startswith(victim)][:1]:
            member.kill()
        code = process.wait(timeout=300)
    for member in family:  # Ray's own processes end by themselves, in their own time
        if member.is_running():
            member.kill()
    return Said(code, "", log.read_text())


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _kill(trial: Trial) -> None:
    whole, cut = trial.folder / "whole", trial.folder / "cut"
    more = ["--episodes", "300", "--engine", "ray", "--workers", "2", "--out"]
    said = fewgraft(*RUN, *more, whole, home=trial.folder / "home")
    trial.check(said.code == 0, said.err[-500:])
    for number in trial.rounds(2 * len(VICTIMS), "kills in a Ray cluster"):
        victim = VICTIMS[number % len(VICTIMS)]
        said = _killed(trial, victim, [*RUN, *more, cut])
        trial.check(said.clean, f"{victim} killed: code {said.code}, {said.err[-800:]}")
        again = fewgraft(*RUN, *more, cut, home=trial.folder / "home")
        trial.check(again.code == 0, f"{victim} killed, again: {again.err[-800:]}")
        same = _there(cut) == _there(whole)
        trial.check(same, f"{victim} killed: other rows or scores")
        shutil.rmtree(cut)


def _there(folder: Path) -> tuple[list[str], dict[str, bytes]]:
    return rows(folder), scores(folder)


ATTACKS = (
    Attack("kills: ray", "done or told in words; run again, each row once, the same bits", _kill),
)
