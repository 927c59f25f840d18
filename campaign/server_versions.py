"""Kills, races, full and read-only disks: the versions of a server stay whole."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from campaign.attack import Attack, Trial, environment
from campaign.server_process import Part, Served, photo, served, until

OVER = ("done", "failed", "kept", "discarded")


def _whole(server: Served) -> str:
    """What is wrong with the versions; nothing if all can be used and the right one serves."""
    told = server.ask("GET", "/api/versions").told
    if not told:
        return "no list of versions"
    serving = [one["name"] for one in told["versions"] if one["current"]]
    if serving != [told["current"]]:
        return f"{serving} serve, but {told['current']} is told"
    damaged = [one["name"] for one in told["versions"] if one["problem"]]
    if damaged:
        return f"damaged: {damaged}"
    answer = server.predict(photo())
    if answer.status != 200 or answer.told["version"] != told["current"]:
        return f"predict: {answer.status} {answer.body[:200]!r}"
    return ""


def _ended(server: Served, job: str) -> Any:
    """The job once it is over."""
    return until(lambda: (told := server.job(job)) and told.get("state") in OVER and told)


def kills(trial: Trial) -> None:
    """kill -9 at any moment of a lesson or of keeping it, then a new server on the same folder."""
    known = 1
    for number in trial.rounds(25, "kills"):
        server = Served(trial.folder)
        trial.check(bool(server.port), f"no restart: {server.log.read_text()[-500:]}")
        trial.check(not (wrong := _whole(server)), f"after kill {number}: {wrong}")
        names = server.ask("GET", "/api/versions").told["versions"]
        trial.check(len(names) >= known, f"after kill {number} a version is gone")
        trial.check(not list(server.versions.glob(".pending-*")), "a lesson was left behind")
        known = len(names)
        job = server.learn(f"class {number}")
        if trial.random.random() < 0.6:
            done = _ended(server, job)
            trial.check(done is not None and done["state"] == "done", f"the lesson: {done}")
            with ThreadPoolExecutor(1) as pool:
                keep = pool.submit(server.ask, "POST", f"/api/jobs/{job}/keep")
                time.sleep(trial.random.uniform(0, 0.15))
                server.kill()
            known += keep.result().status == 200
        else:
            time.sleep(trial.random.uniform(0, 4))
            server.kill()
    trial.check("Traceback" not in server.log.read_text(), "a traceback in the log")


def races(trial: Trial) -> None:
    """Keep, discard, use, learn and predict at once: each is done or refused, nothing breaks."""
    with served(trial.folder) as server, ThreadPoolExecutor(8) as pool:
        for number in trial.rounds(20, "races"):
            jobs = [server.learn(f"class {number} {one}") for one in range(2)]
            if trial.random.random() < 0.7:
                _ended(server, jobs[0])
            names = [v["name"] for v in server.ask("GET", "/api/versions").told["versions"]]
            asked = [f"/api/jobs/{job}/{what}" for job in jobs for what in ("keep", "discard")] * 2
            asked += [f"/api/versions/{trial.random.choice(names)}/use" for _ in range(4)]
            trial.random.shuffle(asked)
            answers = list(pool.map(lambda path: server.ask("POST", path), asked))
            for path, answer in zip(asked, answers, strict=True):
                fair = answer.fair and answer.status in (200, 404, 409)
                trial.check(fair, f"{path}: {answer.status} {answer.body[:200]!r}")
            for job in jobs:
                kept = [a for p, a in zip(asked, answers, strict=True) if p.endswith(f"{job}/keep")]
                trial.check(sum(a.status == 200 for a in kept) <= 1, "a lesson was kept twice")
                server.ask("POST", f"/api/jobs/{job}/discard")
            trial.check(not (wrong := _whole(server)), wrong)
        left = until(lambda: not list(server.versions.glob(".pending-*")), 30)
        trial.check(bool(left), "lessons were left behind")
        trial.check(server.quiet, f"the log: {server.log.read_text(errors='replace')[-900:]}")


CLAIM = """
import sys
from pathlib import Path
from fewgraft.app.server.versions import Versions
from fewgraft.errors import FewgraftError
print("ready", flush=True)
sys.stdin.readline()
try:
    Versions("icons", Path(sys.argv[1]))
except FewgraftError as error:
    print("refused" if "is served already" in error.problem else error.problem, flush=True)
else:
    print("claimed", flush=True)
sys.stdin.readline()  # and hold what was claimed
"""


def claims(trial: Trial) -> None:
    """Servers that start on one folder at the same moment: one gets it."""
    for number in trial.rounds(12, "claims"):
        folder = trial.folder / "versions"
        racing = [
            subprocess.Popen(
                [sys.executable, "-c", CLAIM, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(trial.folder),
            )
            for _ in range(3)
        ]
        with contextlib.ExitStack() as ended:
            for one in racing:
                ended.callback(one.wait)
                ended.callback(one.kill)  # also the one that holds the folder: no clean end
            said = []
            for one in racing:
                assert one.stdout
                one.stdout.readline()
            for one in racing:
                assert one.stdin
                one.stdin.write("go\n")
                one.stdin.flush()
            for one in racing:
                assert one.stdout
                said.append(one.stdout.readline().strip())
        trial.check(sorted(said) == ["claimed", "refused", "refused"], f"round {number}: {said}")


@contextlib.contextmanager
def _small_disk(folder: Path, size: int, how: str = "rw") -> Iterator[bool]:
    """A disk of that many bytes; no: such disks cannot be made here."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},{how}", "tmpfs", str(folder)]
    made = (
        bool(shutil.which("mount"))
        and not subprocess.run(mount, check=False, capture_output=True).returncode
    )
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "-l", str(folder)], check=False)


def full_disk(trial: Trial) -> None:
    """A lesson that finds no room fails in words, and the server goes on."""
    for number in trial.rounds(8, "full disks"):
        folder = trial.folder / str(number)
        size = trial.random.choice((64, 256, 1_024, 1_100, 1_300, 2_200, 4_000)) * 1024
        with _small_disk(folder / "icons.versions", size) as small:
            before = () if small else ("prlimit", f"--fsize={size // 4}")
            with served(folder, before=before) as server:
                photos: list[Part] = [("photos1", "a.png", photo(n)) for n in range(5)]
                answer = server.send("/api/learn", [("class1", None, b"a"), *photos])
                fair = answer.fair and answer.status in (202, 507)
                trial.check(fair, f"learn: {answer.status} {answer.body[:200]!r}")
                if answer.status == 202:
                    told = _ended(server, answer.told["id"])
                    over = told is not None and (told["state"] == "done" or told["error"])
                    trial.check(bool(over), f"{size} bytes: {told}")
                    trial.check("Traceback" not in json.dumps(told), f"{size} bytes: {told}")
                    if told and told["state"] == "done":
                        kept = server.ask("POST", f"/api/jobs/{told['id']}/keep")
                        trial.check(kept.fair, f"keep: {kept.status} {kept.body[:200]!r}")
                trial.check(not (wrong := _whole(server)), f"{size} bytes: {wrong}")
                trial.check(server.quiet, f"the log: {server.log.read_text()[-900:]}")


def read_only(trial: Trial) -> None:
    """A folder that cannot be written is told before anything is served, or when it turns so."""
    for number in trial.rounds(3, "read-only folders"):
        folder = trial.folder / str(number)
        (folder / "moved").mkdir(parents=True)
        with served(folder) as server:
            server.versions.rename(folder / "moved" / "away")
            for path in ("/api/versions", "/api/jobs", "/api/classes"):
                answer = server.ask("GET", path)
                trial.check(answer.fair, f"{path}: {answer.status} {answer.body[:200]!r}")
            parts: list[Part] = [("class1", None, b"a"), ("photos1", "a.png", photo())]
            answer = server.send("/api/learn", parts)
            trial.check(answer.fair and answer.status == 507, f"learn: {answer.status}")
            use = server.ask("POST", "/api/versions/original/use")
            trial.check(use.fair, f"use: {use.status} {use.body[:200]!r}")
            trial.check(server.predict(photo()).status == 200, "no answer without a folder")
            trial.check(server.quiet, f"the log: {server.log.read_text()[-900:]}")
        shutil.rmtree(folder)
        with _small_disk(folder / "icons.versions", 1 << 20, "ro") as made:
            if not made:
                trial.notes.append("no disks can be mounted here")
                continue
            refused = Served(folder)
            code = refused.process.wait(60)
            said = refused.log.read_text()
            trial.check(code == 2, f"exit code {code} on a read-only folder")
            trial.check("cannot write" in said and "Traceback" not in said, said[-500:])


ATTACKS = (
    Attack("server killed", "every version whole, none lost, nothing left behind", kills),
    Attack("races of keep, discard and use", "done once or refused; one version serves", races),
    Attack("servers racing for a folder", "one has it", claims),
    Attack("lessons on a full disk", "the lesson fails in words, the server goes on", full_disk),
    Attack("a read-only folder", "told in words, the server goes on", read_only),
)
