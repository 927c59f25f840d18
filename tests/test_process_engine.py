"""Several processes give the numbers of this one, to the last bit."""

import dataclasses
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from threadpoolctl import threadpool_info
from typer.testing import CliRunner

from fewgraft.bench.process_engine import ProcessEngine
from fewgraft.bench.rows import in_this_process
from fewgraft.bench.runner import Bench, Job
from fewgraft.cli import app
from fewgraft.devices import limit_threads
from fewgraft.episodes import EpisodeSettings
from fewgraft.errors import FewgraftError
from fewgraft.metrics import Scores
from fewgraft.zoo import ZOO

EPISODES = 320  # three chunks without base classes


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _same_home_for_all(home: Path, _own_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes live as long as this module."""
    monkeypatch.setenv("FEWGRAFT_HOME", str(home))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """As workers have: what bits depend on."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def engine() -> Iterator[ProcessEngine]:
    with ProcessEngine(2) as started:
        yield started


def job(**hyper: object) -> Job:
    settings = EpisodeSettings.paper("semi-fsl", 1)
    return Job("icons", "icons", "soft-k-means", hyper, settings, EPISODES, ZOO / "icons")


def by_chunk(finished: Iterator[tuple[range, Scores]]) -> dict[range, dict[str, list[int]]]:
    """NaN is the same as NaN then."""
    return {
        chunk: {
            field.name: getattr(scores, field.name).view(torch.int64).tolist()
            for field in dataclasses.fields(scores)
        }
        for chunk, scores in finished
    }


def test_the_same_bits_as_in_this_process(engine: ProcessEngine) -> None:
    bench, wanted = Bench(), job()
    assert len(wanted.chunks) == 3
    here = by_chunk(in_this_process(bench, wanted, wanted.chunks))
    assert by_chunk(engine(bench, wanted, wanted.chunks)) == here
    some = wanted.chunks[1:]  # as when a run is taken up again
    assert by_chunk(engine(bench, wanted, some)) == {chunk: here[chunk] for chunk in some}


def test_an_error_of_a_method_is_raised_here_and_harms_nothing(engine: ProcessEngine) -> None:
    with pytest.raises(FewgraftError, match="nonsense"):
        list(engine(Bench(), job(nonsense=1), job().chunks))
    assert set(by_chunk(engine(Bench(), job(), job().chunks))) == set(job().chunks)


def test_a_dead_process_is_told_and_the_engine_goes_on(engine: ProcessEngine) -> None:
    bench = Bench()
    list(engine(bench, job(), job().chunks))
    children = psutil.Process().children(recursive=True)
    workers = [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]
    os.kill(workers[0], signal.SIGKILL)
    with pytest.raises(FewgraftError, match="died"):
        list(engine(bench, job(), job().chunks))
    assert set(by_chunk(engine(bench, job(), job().chunks))) == set(job().chunks)


def test_the_command_knows_it(tmp_path: Path) -> None:
    words = "bench run icons --methods nearest-prototype --settings fsl --shots 1 --episodes 20"
    options = ["--engine", "processes", "--workers", "1", "--out", str(tmp_path / "results")]
    ended = CliRunner().invoke(app, [*words.split(), *options])
    assert ended.exit_code == 0, ended.output
    assert "1 rows computed" in ended.output


def threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info()]


def test_no_library_of_a_process_starts_threads_of_its_own() -> None:
    """Two processes with two threads each are slower than one: NumPy's and SciPy's count, too."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, limit_threads, (1,)) as pool:
        found = pool.submit(threads).result()
    assert len(found) >= 3
    assert set(found) == {1}
