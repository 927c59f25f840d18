"""A Ray cluster gives the numbers of this process, to the last bit and whoever dies.

Two real workers on this machine. A worker that is stopped holds its chunk for certain, so that
killing it then is always a death in the midst of work.
"""

import dataclasses
import os
import signal
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import torch

from fewgraft.bench import ray_engine as module
from fewgraft.bench.ray_engine import Greeting, RayEngine, check_versions, ray_engine
from fewgraft.bench.results import Results
from fewgraft.bench.rows import in_this_process, run, versions
from fewgraft.bench.runner import Bench, Job
from fewgraft.bench.session_runner import SessionBench, SessionResults, session_jobs
from fewgraft.episodes import EpisodeSettings
from fewgraft.errors import FewgraftError
from fewgraft.metrics import Scores
from fewgraft.ray_cluster import RayCluster
from fewgraft.session_scores import SessionScores
from fewgraft.sessions import SessionSettings
from fewgraft.training.recipe import load_recipe
from fewgraft.zoo import ZOO

EPISODES = {"s2i": 150, "semi-fsl": 400}  # several chunks each
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None and not os.environ.get("CI"), reason="Ray is not installed"
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _same_home_for_all(home: Path, _own_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers live as long as this module."""
    monkeypatch.setenv("FEWGRAFT_HOME", str(home))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """As workers have: what bits depend on."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    with pytest.MonkeyPatch.context() as patch, ray_engine(workers=2) as started:
        patch.setenv("RAY_AUTH_TOKEN", "a token for these tests")  # else Ray writes one to ~/.ray
        yield started


def job(setting: str = "s2i", **hyper: object) -> Job:
    settings = EpisodeSettings.paper(setting, 1)
    return Job("icons", "icons", "+pr", hyper, settings, EPISODES[setting], ZOO / "icons")


def ready(engine: RayEngine, bench: Bench) -> list[int]:
    """Process numbers of the two workers, when both are there."""
    while len(engine.workers) < 2:
        list(engine(bench, job(), job().chunks))
    return [worker.pid for worker in engine.workers]


def bits(scores: Scores | SessionScores) -> dict[str, list[int]]:
    """NaN is the same as NaN then."""
    return {
        field.name: getattr(scores, field.name).view(torch.int64).tolist()
        for field in dataclasses.fields(scores)
    }


def by_chunk(finished: Iterator[tuple[range, Scores]]) -> dict[range, dict[str, list[int]]]:
    pairs = [(chunk, bits(scores)) for chunk, scores in finished]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@needs_ray
@pytest.mark.parametrize("setting", ["s2i", "semi-fsl"])
def test_the_same_bits_as_in_this_process(engine: RayEngine, bench: Bench, setting: str) -> None:
    wanted = job(setting)
    assert len(wanted.chunks) > 2
    here = by_chunk(in_this_process(bench, wanted, wanted.chunks))
    assert by_chunk(engine(bench, wanted, wanted.chunks)) == here
    some = wanted.chunks[2:]  # as when a run is taken up again
    assert by_chunk(engine(bench, wanted, some)) == {chunk: here[chunk] for chunk in some}


@needs_ray
def test_sessions_have_the_same_rows_as_in_this_process(engine: RayEngine, tmp_path: Path) -> None:
    """Workers of sessions take the place of those of episodes, on the same cluster."""
    settings = SessionSettings(sessions=3, unlabelled=10, queries=15)
    jobs = session_jobs(load_recipe("icons"), ZOO / "icons", ["+pr", "cec"], settings, 25)
    assert len(jobs[0].chunks) == 3
    found = {}
    for name, chosen in (("there", engine), ("here", in_this_process)):
        results, bench = SessionResults(tmp_path / name), SessionBench()
        rows = [row for row, _ in run(jobs, results, bench, chosen)]
        found[name] = [(row.id, row.draw_hash, bits(results.scores(row))) for row in rows]
    assert found["there"] == found["here"]
    assert len({os.getpid(), *(worker.pid for worker in engine.workers)}) == 3


@needs_ray
def test_a_row_tells_the_threads_of_those_who_computed_it(
    engine: RayEngine, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    said = [
        row.machine.split(", ")[1]
        for name, chosen in (("there", engine), ("here", in_this_process))
        for row, _ in run([job("semi-fsl")], Results(tmp_path / name), bench, chosen)
    ]
    assert said == ["1 thread", "7 threads"]


@needs_ray
def test_workers_are_other_processes_and_read_the_bank_of_this_one(
    engine: RayEngine, bench: Bench, home: Path
) -> None:
    pids = ready(engine, bench)
    assert len({*pids, os.getpid()}) == 3
    for pid in pids:
        list(engine(bench, job(), job().chunks))
        banks = {str(bank) for bank in home.glob("features/*/features.npy")}
        assert banks & {mapped.path for mapped in psutil.Process(pid).memory_maps()}


@needs_ray
def test_the_users_mistake_comes_back_as_it_was_and_workers_go_on(
    engine: RayEngine, bench: Bench
) -> None:
    wrong = job(alhpa=0.5)
    with pytest.raises(FewgraftError, match="no hyper-parameter 'alhpa'") as caught:
        list(engine(bench, wrong, job().chunks))
    assert type(caught.value) is FewgraftError
    assert caught.value.hint.startswith("Did you mean")
    assert set(by_chunk(engine(bench, job(), job().chunks))) == set(job().chunks)


@needs_ray
def test_a_killed_worker_changes_no_number(
    engine: RayEngine, bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = job()
    here = by_chunk(in_this_process(bench, wanted, wanted.chunks))
    victim, survivor = ready(engine, bench)
    os.kill(victim, signal.SIGSTOP)
    finished = engine(bench, wanted, wanted.chunks)
    first, scores = next(finished)
    os.kill(victim, signal.SIGKILL)
    assert {first: bits(scores)} | by_chunk(finished) == here
    pids = [worker.pid for worker in engine.workers]
    assert victim not in pids
    assert survivor in pids
    told = capfd.readouterr()
    assert f"worker {victim} on {socket.gethostname()} died at episodes" in told.err
    assert not told.out  # it belongs to the results


@needs_ray
def test_a_run_that_is_given_up_leaves_no_work_behind(engine: RayEngine, bench: Bench) -> None:
    slow, other = ready(engine, bench)
    os.kill(slow, signal.SIGSTOP)
    finished = engine(bench, job(), job().chunks[:2])
    next(finished)
    finished.close()  # type: ignore[attr-defined]
    assert [worker.pid for worker in engine.workers] == [other]
    assert set(by_chunk(engine(bench, job(), job().chunks))) == set(job().chunks)


@needs_ray
def test_all_workers_die_idle_and_one_with_another_disk_computes_its_own_features(
    engine: RayEngine, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process has its features in memory and writes no bank there."""
    monkeypatch.setattr(module, "TRIES", 2)  # one chunk, two deaths: not both are the chunk's
    chunks = job().chunks[:1]
    here = by_chunk(in_this_process(bench, job(), chunks))
    for pid in ready(engine, bench):
        os.kill(pid, signal.SIGKILL)
    monkeypatch.setenv("FEWGRAFT_HOME", str(tmp_path / "another disk"))
    assert by_chunk(engine(bench, job(), chunks)) == here
    assert len(list(tmp_path.glob("another disk/features/*/features.npy"))) == 1


@needs_ray
def test_a_chunk_that_kills_whoever_takes_it_ends_the_run(
    engine: RayEngine, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIES", 1)
    victim, _ = ready(engine, bench)
    os.kill(victim, signal.SIGSTOP)
    finished = engine(bench, job(), job().chunks)
    next(finished)
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(FewgraftError, match="died at episodes"):
        list(finished)


@needs_ray
def test_no_cluster_at_the_address(bench: Bench) -> None:
    with ray_engine("127.0.0.1:1") as engine, pytest.raises(FewgraftError, match="cannot join"):
        list(engine(bench, job(), job().chunks))


@needs_ray
def test_a_cluster_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray raises a bare Exception where a busy machine takes too long."""
    cluster = RayCluster()

    def start(*_: object, **__: object) -> None:
        raise Exception("the node timed out")

    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", start)
    with pytest.raises(FewgraftError, match="does not start: the node timed out"):
        cluster.connect()


def test_a_machine_with_other_versions_is_refused() -> None:
    check_versions(Greeting(1, "oak", versions()))
    with pytest.raises(FewgraftError, match="oak has torch"):
        check_versions(Greeting(1, "oak", versions() | {"torch": "0.1"}))


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FewgraftError, match="not installed") as caught:
        ray_engine()
    assert caught.value.hint == "pip install 'fewgraft[ray]'"
