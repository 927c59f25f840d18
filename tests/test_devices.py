"""Methods compute where the features are, and the tool's network where it is told to.

Tensors of the device "meta" have shapes and no values. They stand in for a device that the machine
does not have: what mixes them with tensors on the CPU fails as it would there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typer.testing import CliRunner

from campaign.layouts import photo_tree
from fewgraft import devices
from fewgraft.app.estimator import FewgraftClassifier
from fewgraft.app.features.embedding import Embedder
from fewgraft.app.learning.adapting import adapted_model
from fewgraft.app.learning.base import model_of_backbone
from fewgraft.app.learning.saving import open_classifier
from fewgraft.bench.runner import Bench, Job
from fewgraft.cli import app
from fewgraft.data.store import ImageStore
from fewgraft.devices import choose_device
from fewgraft.episodes import SETTINGS, EpisodeSettings, Pools, sample_episodes
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import FeatureBank
from fewgraft.methods import method_spec, methods
from fewgraft.methods.base import Method
from fewgraft.methods.beside_base import BesideBase
from fewgraft.methods.distilled_adaptation import DistilledAdaptation
from fewgraft.methods.trained import TrainedMethod, initial_block
from fewgraft.model import CosineModel, new_model
from fewgraft.network import Network
from fewgraft.split_features import EpisodeFeatures
from fewgraft.zoo import ZOO

META = torch.device("meta")
PICTURES, BASE, D = 320, 8, 128
POOLS = Pools(
    novel={k: np.arange(k * 20, (k + 1) * 20) for k in range(BASE, 16)},
    base=np.arange(BASE * 20),
    base_labels=np.arange(BASE * 20) // 20,
    n_base=BASE,
)
FASTER = {"steps": 2, "batch": 4}
FEWER: dict[str, dict[str, int]] = {
    "alpha-tim": {"steps": 3},
    "ici": {"per_round": 50},
    "tim-gd": {"steps": 3},
    "transmatch": {"steps": 2, "batch": 4},
    "lcwof-block": {"steps": 2, "calibration_steps": 2},
    "xtarnet-block": {},
}


# Those whose next step depends on values, which there are none of on "meta".
BY_VALUE = (
    "alpha-tim",
    "epnet",
    "ici",
    "ilpc",
    "laplacian-shot",
    "proto-lp",
    "pt-map",
    "tafssl-bkm",
    "tafssl-msp",
    "tim-gd",
    "tpn",
    "tpn-sigma",
    "+soft-k-means",
)


def fits(name: str, setting: str) -> bool:
    spec = method_spec(name)
    return spec.joint if SETTINGS[setting].incremental else spec.regular


@pytest.fixture
def _no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions about values have no answer here: nothing is wrong with them."""
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda _: False)


def elsewhere(icons: ImageStore, place: torch.device = META) -> EpisodeFeatures:
    bank = FeatureBank.of(torch.randn(PICTURES, D), torch.arange(PICTURES), PICTURES).to(place)

    def network() -> Network:
        return Network(model(icons), icons.pictures[:PICTURES])

    def learnt(method: Method, shots: int) -> dict[str, torch.Tensor]:
        assert isinstance(method, TrainedMethod)
        with torch.device("cpu"):
            made = method.initial(torch.randn(BASE, D), 20.0, shots, torch.Generator())
            if method.moves_network:
                start = {name: torch.empty(p.shape) for name, p in network().start.items()}
                made |= initial_block(start, method.block_rank, torch.Generator())
        return {name: tensor.to(place) for name, tensor in made.items()}

    weights, of_base = torch.randn(BASE, D, device=place), torch.randn(BASE, 5, D, device=place)
    found = EpisodeFeatures(lambda: bank, weights, 20.0, network, lambda: of_base, learnt)
    found.base_pictures = torch.arange(5 * BASE).view(BASE, 5)
    return found


def model(icons: ImageStore) -> CosineModel:
    made = new_model("resnet12-tiny", icons.base_classes[:BASE], 32, 1, (0.5,), (0.5,))
    assert made.card.width == D
    return made.to(META)


def all_methods() -> dict[str, Method]:
    """With fewer steps; what is beside base classes is the same around every method."""
    found = {name: spec.method for name, spec in methods().items()}
    return {
        name: method.changed(**FEWER.get(name, FASTER if method.moves_network else {}))
        for name, method in found.items()
        if not isinstance(method, BesideBase) or name == "+soft-k-means"
    }


@pytest.mark.usefixtures("_no_values")
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (name, setting)
        for name in all_methods()
        for setting in ("s2i", "s2i-transductive", "incremental", "semi-fsl")
        if name not in BY_VALUE and fits(name, setting)
    ],
)
def test_methods_compute_where_the_features_are(name: str, setting: str, icons: ImageStore) -> None:
    changes = {"queries": 3, "base_queries": 6} if "s2i" in setting else {"queries": 3}
    changes |= {"unlabelled": 12} if setting in ("s2i", "semi-fsl") else {}
    settings = EpisodeSettings.paper(setting, 2, ways=3, **changes)
    episodes, _ = sample_episodes(POOLS, settings, 2)
    logits = elsewhere(icons).logits(all_methods()[name], episodes, slice(0, 2))
    assert logits.device == META
    assert logits.shape == (2, episodes.query.shape[1], episodes.n_classes)


@pytest.mark.parametrize(
    ("name", "setting"),
    [(n, s) for n in BY_VALUE for s in ("s2i", "incremental", "semi-fsl") if fits(n, s)],
)
def test_nothing_is_made_on_a_default_device(name: str, setting: str, icons: ImageStore) -> None:
    """Methods whose next step depends on values: what they make by default would be elsewhere."""
    changes = {"queries": 3, "base_queries": 6} if setting != "semi-fsl" else {"queries": 3}
    changes |= {"unlabelled": 24} if setting != "incremental" else {}
    settings = EpisodeSettings.paper(setting, 2, ways=3, **changes)
    episodes, _ = sample_episodes(POOLS, settings, 2)
    features = elsewhere(icons, torch.device("cpu"))
    with torch.device(META):
        logits = features.logits(all_methods()[name], episodes, slice(0, 2))
    assert logits.device.type == "cpu"
    assert logits.isfinite().all()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """Where convolutions are computed; zeros come back from where there are no values."""
    back, number = torch.Tensor.cpu, torch.Tensor.item
    monkeypatch.setattr(
        torch.Tensor, "cpu", lambda t: torch.zeros(t.shape, dtype=t.dtype) if t.is_meta else back(t)
    )
    monkeypatch.setattr(torch.Tensor, "item", lambda t: 1.0 if t.is_meta else number(t))
    monkeypatch.setattr(devices, "_present", lambda: ["meta", "cpu"])
    with Convolutions() as watched:
        yield watched.places


class Convolutions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the device of every convolution."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: list[torch.device] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if "conv" in str(func):
            self.places.append(args[0].device)
        return func(*args, **(kwargs or {}))


def photos(icons: ImageStore, count: int = 12) -> dict[str, list[Any]]:
    own = [icons.pictures[place].repeat(3, axis=2) for place in range(3 * count)]
    return {name: own[place::3] for place, name in enumerate(("a", "b", "c"))}


def test_photos_go_to_the_device_and_features_come_back(
    icons: ImageStore, seen: list[torch.device]
) -> None:
    here = open_classifier("icons")
    seen.clear()
    embed = Embedder(here, keep=False, device=META)
    done = embed(photos(icons)["a"])
    assert (set(seen), done.tensor().device.type) == ({META}, "cpu")
    assert here.weight.device.type == "cpu", "the caller's own stays where it is"
    there = Embedder(open_classifier("icons").to(META), keep=False)
    assert there.runtime.device == META
    assert len(there(photos(icons)["a"]).kept) == 12


def test_a_base_and_a_lesson_are_computed_there(
    icons: ImageStore, seen: list[torch.device]
) -> None:
    """All of the network; the lesson itself is on the CPU."""
    names = np.repeat(["a", "b", "c"], 12)
    every = [photo for own in photos(icons).values() for photo in own]
    start = model_of_backbone(str(ZOO / "icons" / "algorithm-2"))
    seen.clear()
    v1 = FewgraftClassifier(start, keep=False, device="meta").fit(every, names)
    v2 = v1.learn(every[:2], ["d", "e"], unlabelled=every)
    v2.predict(every)
    assert set(seen) == {META}
    assert {tensor.device.type for tensor in v2.model_.state_dict().values()} == {"cpu"}
    assert start.weight.device.type == "cpu", "the caller's own stays where it is"


def test_a_network_is_adapted_there(
    icons: ImageStore, seen: list[torch.device], request: pytest.FixtureRequest
) -> None:
    here = open_classifier("icons")
    request.getfixturevalue("_no_values")
    seen.clear()
    few = DistilledAdaptation(steps=2, batch=4)
    moved = adapted_model(here, photos(icons, 2), photos(icons)["a"], few, META)
    assert set(seen) == {META}
    assert {tensor.device.type for tensor in moved.state_dict().values()} == {"cpu"}


def test_the_benchmark_computes_there(seen: list[torch.device], tmp_path: Path) -> None:
    job = Job("icons", "icons", "+pr", {}, EpisodeSettings.paper("s2i", 1), 2, ZOO / "icons")
    features = Bench(tmp_path, META).split_features(job)
    assert features.weights.device == META
    seen.clear()
    assert features.bank.features.device == META
    assert set(seen) == {META}


def test_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")
    for name in ("cuda", "mps", "cuda:1", "gpu", "meta", ""):
        with pytest.raises(FewgraftError, match="there is no device") as caught:
            choose_device(name)
        assert caught.value.hint == "There are: auto, cpu."
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(FewgraftError, match="cuda:2"):
        choose_device("cuda:2")


@pytest.mark.parametrize("command", ["base", "learn", "predict", "serve", "bench run"])
def test_commands_refuse_a_device_that_is_not_here(command: str, tmp_path: Path) -> None:
    words = {
        "base": [str(tmp_path), "--out", str(tmp_path / "v1")],
        "learn": ["icons", "--new", str(tmp_path), "--out", str(tmp_path / "v1")],
        "predict": ["icons", str(tmp_path)],
        "serve": ["icons", "--port", "0"],
        "bench run": ["icons"],
    }[command]
    photo_tree(tmp_path / "photos", 2, 2)
    words = [word.replace(str(tmp_path), str(tmp_path / "photos")) for word in words]
    result = CliRunner().invoke(app, [*command.split(), *words, "--device", "gpu"])
    assert isinstance(result.exception, FewgraftError)
    assert result.exception.problem == "there is no device 'gpu' here"


def test_small_sums_have_one_thread_and_the_others_come_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with devices.threads_for(devices.WORTH_THREADS):
            assert torch.get_num_threads() == 2
        with devices.threads_for(devices.WORTH_THREADS - 1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
