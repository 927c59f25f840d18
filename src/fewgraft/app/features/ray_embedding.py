"""Features of photos from many machines, into the cache of this one (`fewgraft embed`).

Photos are read here, so that no other machine needs this disk. Ray Data streams their bytes to
workers, which decode and compute; features come back and are written here, by content. Photos of a
worker or machine that dies are done again by another, and what was written stays written.
"""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewgraft import __version__
from fewgraft.app.features.cache import FeatureCache, cache_root, content_key
from fewgraft.app.features.embedding import Embedder, Tracker, content_of, track_photos
from fewgraft.data.pictures import PictureError
from fewgraft.errors import FewgraftError
from fewgraft.extras import first_line
from fewgraft.model import CosineModel, ModelCard
from fewgraft.ray_cluster import RayCluster, home_of_this_process
from fewgraft.runtime import backbone_key

BLOCK = 8  # photos that travel together: 40 MB from a good camera
Columns = dict[str, Any]  # of a block, each [n]


def embed_on_ray(
    model: CosineModel,
    photos: Sequence[Path],
    cluster: RayCluster,
    *,
    cache: Path | None = None,
    tracker: Tracker = track_photos,
) -> dict[int, str]:
    """Fill the cache with the features of these photos; gives those that failed, with reasons."""
    kept = FeatureCache((cache or cache_root()) / backbone_key(model), model.card.width)
    unknown = [number for number in range(len(photos)) if not _is_known(photos[number], kept)]
    failed: dict[int, str] = {}
    if not unknown:
        return failed
    cluster.connect()
    finished = _computed(model, [photos[number] for number in unknown], cluster.ray)
    try:
        for place in tracker(_kept(finished, kept, failed), "photos", len(unknown)):
            del place
    finally:
        kept.flush()
    return {unknown[place]: why for place, why in failed.items()}


def _is_known(photo: Path, kept: FeatureCache) -> bool:
    """Whether its feature is there; what cannot be read is told by whoever reads it next."""
    try:
        content = content_of(photo)
    except (PictureError, OSError):
        return False
    return isinstance(content, bytes) and content_key(content) in kept


def _kept(finished: Iterator[Columns], kept: FeatureCache, failed: dict[int, str]) -> Iterator[int]:
    """Every photo's place as it is finished; features go to the cache, reasons to `failed`."""
    for block in finished:
        for place, key, feature, problem in zip(
            block["place"], block["key"], block["feature"], block["problem"], strict=True
        ):
            if problem:
                failed[int(place)] = str(problem)
            else:
                kept.put({bytes(key): np.asarray(feature, np.float32)})
            yield int(place)


def _computed(model: CosineModel, photos: Sequence[Path], ray: Any) -> Iterator[Columns]:
    """Blocks of features, in any order."""
    import ray.data as ray_data

    context = ray_data.DataContext.get_current()
    context.enable_progress_bars = False
    here = ray.get_runtime_context().get_node_id()
    cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
    places = np.array_split(np.arange(len(photos)), -(-len(photos) // BLOCK))
    alone = ray.put((__version__, backbone_alone(model)))
    blocks = (
        ray_data.from_numpy(places)
        .map_batches(
            _Read(tuple(photos)),
            batch_size=None,
            num_cpus=0,
            label_selector={"ray.io/node-id": here},
        )
        .map_batches(
            _Compute,
            fn_constructor_args=(alone, home_of_this_process(), len(photos) // cores),
            batch_size=None,
            num_cpus=1,
            concurrency=(1, cores),
        )
    )
    try:
        yield from blocks.iter_batches(batch_size=None, batch_format="numpy")
    except ray.exceptions.RayError as error:
        raise FewgraftError(f"the Ray cluster failed: {first_line(error)}") from error


def backbone_alone(model: CosineModel) -> CosineModel:
    """A model of the backbone and nothing that was learnt on top; its features are the cache's."""
    card = model.card
    names = ("backbone", "backbone_settings", "width", "size", "crop", "channels", "mean", "std")
    about = {name: getattr(card, name) for name in (*names, "mirrored")}
    return CosineModel(ModelCard(classes=(), **about), model.backbone).eval()


class _Read:
    """Places of photos → their bytes, on the machine that has them."""

    def __init__(self, photos: Sequence[Path]) -> None:
        self._photos = photos

    def __call__(self, block: Columns) -> Columns:
        read = [self._one(self._photos[place]) for place in block["data"]]
        contents, problems = zip(*read, strict=True)
        return {
            "place": block["data"],
            "content": np.array(contents, object),
            "problem": np.array(problems, object),
        }

    def _one(self, photo: Path) -> tuple[bytes, str]:
        try:
            content = content_of(photo)
            assert isinstance(content, bytes)
            return content, ""
        except PictureError as error:
            return b"", str(error)
        except OSError as error:
            return b"", error.strerror or "cannot be read"


class _Compute:
    """Bytes of photos → features; a process of the cluster, with one thread."""

    def __init__(self, model: Any, environment: Mapping[str, str], expected: int) -> None:
        import ray

        os.environ.update(environment)
        torch.set_num_threads(1)
        version, found = ray.get(model)
        _check_version(version)
        self._embed = Embedder(found, keep=False, tracker=lambda items, *_: items)
        self._embed.runtime.expect(expected)

    def __call__(self, block: Columns) -> Columns:
        done = self._embed(list(block["content"]))
        count = len(block["place"])
        keys, problems = [b""] * count, [str(problem) for problem in block["problem"]]
        features = np.zeros((count, self._embed.model.card.width), np.float32)
        for row, place in enumerate(done.kept):
            keys[place], features[place] = done.keys[row], done.features[row]
        for place, why in done.failed.items():
            problems[place] = problems[place] or why
        return {
            "place": block["place"],
            "key": np.array(keys, object),
            "feature": features,
            "problem": np.array(problems, object),
        }


def _check_version(version: str) -> None:
    if version != __version__:
        raise FewgraftError(
            f"{socket.gethostname()} has fewgraft {__version__}, the others {version}",
            "Install the same version on all machines.",
        )
