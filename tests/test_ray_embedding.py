"""Two machines fill the cache of this one, whoever dies; a lesson then needs no network."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image
from typer.testing import CliRunner

from fewgraft.app.features.embedding import Embedder
from fewgraft.app.features.ray_embedding import embed_on_ray
from fewgraft.app.learning.saving import open_classifier
from fewgraft.cli import app
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.model import CosineModel
from fewgraft.ray_cluster import RayCluster
from fewgraft.zoo import ZOO

PHOTOS = 100
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None and not os.environ.get("CI"), reason="Ray is not installed"
)


@pytest.fixture(scope="module")
def two_machines() -> Iterator[RayCluster]:
    """A cluster of two nodes on this machine, each with one core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", "a token for these tests")  # else Ray writes one to ~/.ray
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        from ray.cluster_utils import Cluster

        node: dict[str, Any] = {
            "num_cpus": 1,
            "object_store_memory": 100 * 2**20,
        }
        machines: Any = Cluster(initialize_head=True, head_node_args=node)
        machines.add_node(**node)
        cluster = RayCluster(machines.address)
        cluster.connect()
        yield cluster
        cluster.close()
        machines.shutdown()


@pytest.fixture
def photos(icons: ImageStore, tmp_path: Path) -> list[Path]:
    """Files with spaces in their names; one is broken, and one is there twice."""
    folder = tmp_path / "my photos"
    folder.mkdir()
    for number in range(PHOTOS):
        Image.fromarray(icons.pictures[number, :, :, 0]).save(folder / f"photo {number:03}.png")
    (folder / "photo 007.png").write_bytes(b"broken")
    (folder / "photo 008.png").write_bytes((folder / "photo 009.png").read_bytes())
    return sorted(folder.iterdir())


def never(model: CosineModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> object:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(model.backbone, "forward", fail)


def workers() -> list[psutil.Process]:
    """Processes of ours that compute features."""
    ours = psutil.Process().children(recursive=True)
    return [one for one in ours if "_Compute" in "".join(one.cmdline())]


@needs_ray
@pytest.mark.slow
def test_a_killed_worker_loses_no_photo(
    two_machines: RayCluster, photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_classifier("icons")
    expected = Embedder(model, keep=False)(photos)
    killed: list[int] = []

    def kill_one(items: Iterable[int], *_: Any) -> Iterator[int]:
        """At the first photo that is finished: there are others in hand then."""
        for item in items:
            if not killed:
                killed.append(workers()[0].pid)
                os.kill(killed[0], signal.SIGKILL)
            yield item

    failed = embed_on_ray(model, photos, two_machines, tracker=kill_one)
    assert list(failed) == list(expected.failed) == [7]
    assert killed
    never(model, monkeypatch)
    found = Embedder(model)(photos)
    np.testing.assert_allclose(found.features, expected.features, rtol=1e-4, atol=1e-5)
    assert found.keys == expected.keys
    assert embed_on_ray(model, photos[:7], RayCluster("127.0.0.1:1")) == {}, "all are known"


def test_features_that_were_embedded_ahead_are_found(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(ZOO / "icons" / "algorithm-2")
    result = CliRunner().invoke(app, ["embed", str(photos[0].parent), "--backbone", folder])
    assert result.exit_code == 0, result.output
    assert f"features of {PHOTOS - 1} photos are kept" in result.output
    model = open_classifier("icons")
    never(model, monkeypatch)
    assert list(Embedder(model)(photos).failed) == [7]


@pytest.mark.parametrize("words", [["--engine", "spark"], ["--address", "127.0.0.1:1"]])
def test_an_engine_that_is_not_there(words: list[str], photos: list[Path]) -> None:
    result = CliRunner().invoke(app, ["embed", str(photos[0]), *words])
    assert isinstance(result.exception, FewgraftError)


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FewgraftError, match="not installed") as caught:
        RayCluster()
    assert caught.value.hint == "pip install 'fewgraft[ray]'"
