"""Features by onnxruntime are those of PyTorch, and nothing that is kept is trusted blindly."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fewgraft import runtime
from fewgraft.app.features.embedding import Embedder
from fewgraft.data.store import ImageStore
from fewgraft.feature_bank import feature_bank
from fewgraft.model import CosineModel, ModelCard, embed_all, new_model
from fewgraft.prototypes import directions
from fewgraft.runtime import Runtime, networks_root
from fewgraft.zoo import shipped_model

PLENTY = 10**9  # pictures ahead: any network is worth an export


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """So that there is more than one batch at a time."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def _always_faster() -> Iterator[None]:
    """Whether it is does not depend on what else this machine does just now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "FASTER", 0.0)
        yield


def model(mirrored: bool = False, seed: int = 0) -> CosineModel:
    made = new_model("conv4", ("a", "b"), 16, 3, (0.5,) * 3, (0.2,) * 3, seed, mirrored=mirrored)
    return made.eval()


def pictures(count: int = 5) -> "np.ndarray":
    return np.random.default_rng(1).integers(0, 256, (count, 16, 16, 3), np.uint8)


def prepared(of: CosineModel, tell: "list[str] | None" = None) -> Runtime:
    """After it has decided, with work enough for an export."""
    said: list[str] = [] if tell is None else tell
    made = Runtime(of, tell=said.append)
    made(pictures())
    made.consider(pictures(), PLENTY)
    return made


@pytest.mark.parametrize("mirrored", [False, True])
def test_features_are_those_of_pytorch(mirrored: bool) -> None:
    of = model(mirrored)
    made = prepared(of)
    assert made.streams == 2
    for count in (1, 2, 7):
        expected = embed_all(of, pictures(count)).numpy()
        np.testing.assert_allclose(made(pictures(count)), expected, rtol=1e-4, atol=1e-5)


def test_an_export_is_made_once_and_only_for_work_enough() -> None:
    said: list[str] = []
    idle = Runtime(model(), tell=said.append)
    idle(pictures())
    idle.consider(pictures(), 1)
    assert (idle.streams, said, networks_root().exists()) == (1, [], False)
    prepared(model(), said)
    assert [line.split(",")[0] for line in said] == ["preparing conv4 for onnxruntime"]
    [network] = networks_root().glob("*/network.onnx")
    written = network.stat().st_mtime_ns
    again = Runtime(model(), tell=said.append)
    again.consider(pictures(), 1)
    assert (again.streams, len(said), network.stat().st_mtime_ns) == (2, 1, written)


@pytest.fixture(scope="module")
def two_networks(tmp_path_factory: pytest.TempPathFactory) -> "tuple[Path, Path]":
    """Folders of the network of `model()` and of one with other weights, as they are kept."""
    root = tmp_path_factory.mktemp("networks")
    folders = []
    for seed in (0, 1):
        made = Runtime(model(seed=seed), root=root, tell=lambda _: None)
        made(pictures())
        made.consider(pictures(), PLENTY)
        folders.append(root / made.key)
    return folders[0], folders[1]


@pytest.mark.parametrize("harm", ["none", "cut", "empty", "foreign", "no verdict", "other version"])
def test_a_damaged_or_foreign_network_is_not_used(
    harm: str, two_networks: "tuple[Path, Path]"
) -> None:
    """The foreign one is a whole network with a verdict of its own, which names another one."""
    sound, foreign = two_networks
    folder = networks_root() / sound.name
    shutil.copytree(foreign if harm == "foreign" else sound, folder)
    network, verdict = folder / "network.onnx", folder / "verdict.json"
    if harm in ("cut", "empty"):
        network.write_bytes(network.read_bytes()[: 1000 if harm == "cut" else 0])
    elif harm == "no verdict":
        verdict.write_text("[1]")
    elif harm == "other version":
        verdict.write_text(verdict.read_text().replace("onnxruntime ", "onnxruntime 9"))
    careful = Runtime(model(), tell=pytest.fail)
    careful.consider(pictures(), 1)
    assert careful.streams == (2 if harm == "none" else 1)
    expected = embed_all(model(), pictures()).numpy()
    np.testing.assert_allclose(careful(pictures()), expected, rtol=1e-4, atol=1e-5)


def test_a_damaged_network_is_made_again(two_networks: "tuple[Path, Path]") -> None:
    folder = networks_root() / two_networks[0].name
    shutil.copytree(two_networks[0], folder)
    (folder / "network.onnx").write_bytes(b"")
    said: list[str] = []
    assert (prepared(model(), said).streams, len(said)) == (2, 1)
    later = Runtime(model())
    later.consider(pictures(), 1)
    assert later.streams == 2


def test_what_cannot_be_used_is_told_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(runtime, "FASTER", 1e9)
    assert prepared(model(), said).streams == 1
    assert "times as long" in said[-1]
    monkeypatch.setattr(runtime, "FASTER", 0.0)
    assert prepared(model(), said).streams == 1
    assert len(said) == 2


def test_results_that_differ_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(runtime, "TOLERANCE", -1.0)
    assert prepared(model(), said).streams == 1
    assert "differ" in said[-1]


def test_without_its_packages_pytorch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert prepared(model(), said).streams == 1
    assert said[-1] == "PyTorch computes conv4: this needs the package onnxscript"


def test_a_disk_that_cannot_be_written_costs_nothing_now(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    of = model()
    made = Runtime(of, root=tmp_path / "file", tell=lambda _: None)
    made(pictures())
    made.consider(pictures(), PLENTY)
    assert made.streams == 2


def test_a_module_without_a_name_stays_with_pytorch() -> None:
    card = ModelCard(
        backbone="custom", width=48, classes=(), size=4, channels=3, mean=(0,) * 3, std=(1,) * 3
    )
    made = Runtime(CosineModel(card, nn.Flatten()), tell=pytest.fail)
    pixels = np.zeros((2, 4, 4, 3), np.uint8)
    made(pixels)
    made.consider(pixels, PLENTY)
    assert made.streams == 1


def test_photos_go_through_it_in_order(icons: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches at a time, broken photos among them, each feature at its own place."""
    monkeypatch.setattr(runtime, "EXPORT_SECONDS", 0.0)
    of = model()
    photos = [*icons.pictures[:90].repeat(3, axis=3), b"broken", *icons.pictures[90:150]]
    embed = Embedder(of, keep=False)
    done = embed(photos)
    assert embed.runtime.streams == 2
    assert done.kept == [*range(90), *range(91, 151)]
    monkeypatch.setattr(runtime, "EXPORT_SECONDS", 1e9)
    monkeypatch.setenv("FEWGRAFT_HOME", str(networks_root().parent / "other"))
    plain = Embedder(of, keep=False)
    expected = plain(photos)
    assert plain.runtime.streams == 1
    np.testing.assert_allclose(done.features, expected.features, rtol=1e-4, atol=1e-5)
    assert done.keys == expected.keys


def test_a_server_prepares_itself() -> None:
    made = Runtime(model(), tell=lambda _: None)
    made.expect(1)
    assert made.streams == 1
    made.expect(PLENTY)
    assert made.streams == 2


def test_a_feature_bank_goes_through_it(
    icons: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large pictures only; small ones keep PyTorch's numbers to the bit."""
    of = shipped_model("icons", "pre-trained")
    pictures = np.arange(70)
    expected = directions(embed_all(of, icons.pictures[pictures]))
    torch.testing.assert_close(feature_bank(of, icons, pictures, tmp_path / "1").features, expected)
    assert not networks_root().exists()
    monkeypatch.setattr("fewgraft.feature_bank.BY_TORCH", 0)
    monkeypatch.setattr(runtime, "EXPORT_SECONDS", 0.0)
    other = feature_bank(of, icons, pictures, tmp_path / "2").features
    assert len(list(networks_root().glob("*/network.onnx"))) == 1
    torch.testing.assert_close(other, expected, rtol=1e-4, atol=1e-5)
