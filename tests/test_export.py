"""A model as one ONNX file answers as the model does, and says how to use it."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Pixels, noise
from PIL import Image
from torch import Tensor, nn

from fewgraft import __version__
from fewgraft.backbones import backbone_spec
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.export import export_onnx
from fewgraft.extras import extra
from fewgraft.model import CosineModel, ModelCard, Unknown, embed_all, new_model
from fewgraft.prototypes import cosine_logits
from fewgraft.zoo import shipped_model

pytestmark = pytest.mark.numerical


def session(path: Path) -> Any:
    runtime = extra("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def answers(path: Path, pixels: Pixels, batch: int) -> tuple[Tensor, Tensor]:
    run = session(path)
    parts = [
        run.run(["logits", "probabilities"], {"pixels": pixels[start : start + batch]})
        for start in range(0, len(pixels), batch)
    ]
    logits, probabilities = zip(*parts, strict=True)
    return torch.from_numpy(np.concatenate(logits)), torch.from_numpy(np.concatenate(probabilities))


def assert_same(model: CosineModel, path: Path, pixels: Pixels, batch: int) -> None:
    """The same top-1 for at least 99.9 % of the pictures, and logits within 1e-3."""
    logits, probabilities = answers(path, pixels, batch)
    with torch.inference_mode():
        expected = cosine_logits(embed_all(model, pixels, batch), model.weight, model.gamma)
    assert len(set(expected.argmax(1).tolist())) > 1, "one answer to everything proves nothing"
    assert (logits.argmax(1) == expected.argmax(1)).double().mean() >= 0.999
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(probabilities, expected.softmax(1), rtol=0, atol=1e-3)


def test_the_shipped_model_on_all_its_test_pictures(
    icons: ImageStore, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = shipped_model("icons", "algorithm-2")
    export_onnx(model, path := tmp_path / "icons.onnx")
    assert capfd.readouterr() == ("", ""), "the exporter's warnings are of no use to anybody"
    chosen = np.concatenate([icons.indices(Part(f"{kind}/test")) for kind in ("base", "novel")])
    assert len(chosen) > 2000
    assert_same(model, path, icons.pictures[chosen], batch=500)


def test_an_efficientnet_with_a_centre(icons: ImageStore, tmp_path: Path) -> None:
    """On icons drawn large; its classes are the features of six of them."""
    spec = backbone_spec("efficientnet-lite0")
    assert spec.trained is not None
    assert spec.mean is not None
    assert spec.std is not None
    card = ModelCard(
        backbone=spec.name,
        width=spec.width,
        classes=tuple("abcdef"),
        size=spec.size,
        channels=3,
        mean=spec.mean,
        std=spec.std,
        crop=spec.crop,
        centred=True,
    )
    model = CosineModel(card, spec.trained()).eval()
    small = icons.pictures[:: len(icons) // 36][:36, :, :, 0]
    drawn = [Image.fromarray(p).convert("RGB").resize((224, 224)) for p in small]
    pixels = np.stack([np.asarray(image) for image in drawn])
    features = embed_all(model, pixels, 12)
    model.centre.copy_(features.mean(0))
    model.weight.data.copy_((features - features.mean(0))[::6])
    export_onnx(model, path := tmp_path / "efficientnet.onnx")
    assert_same(model, path, pixels, batch=12)


def small_model(**changes: Any) -> CosineModel:
    model = new_model("conv4", ("ähre", "bear", "bee"), 16, 3, (0.5,) * 3, (0.2,) * 3)
    card = model.card.model_copy(update=changes)
    return CosineModel(card, model.backbone)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    unknown = Unknown(threshold=3.25, false_rejects=0.05, pictures=9, chosen_on="support")
    path = tmp_path_factory.mktemp("exported") / "deep" / "model.onnx"
    model = small_model(crop=0.8, unknown=unknown, licence="MIT").train()
    export_onnx(model, path)
    assert model.training, "the model is left as it was"
    return path


def test_the_file_tells_how_to_use_it(exported: Path) -> None:
    told = session(exported).get_modelmeta().custom_metadata_map
    assert json.loads(told["classes"]) == ["ähre", "bear", "bee"]
    assert (told["size"], told["crop"], told["channels"]) == ("16", "0.8", "3")
    assert float(told["unknown_threshold"]) == 3.25
    assert (told["licence"], told["fewgraft_version"]) == ("MIT", __version__)
    assert "shorter side to 20 pixels" in told["preparation"]
    assert "16×16" in told["preparation"]


def test_it_takes_any_number_of_pictures_and_is_whole(exported: Path) -> None:
    run = session(exported)
    assert [(i.name, i.type, i.shape[1:]) for i in run.get_inputs()] == [
        ("pixels", "tensor(uint8)", [16, 16, 3])
    ]
    for count in (1, 2, 7):
        logits, _ = run.run(None, {"pixels": noise(0, count, 16, 16, 3)})
        assert logits.shape == (count, 3)
    assert [path.name for path in exported.parent.iterdir()] == ["model.onnx"]


def test_an_old_file_stays_when_the_export_fails(tmp_path: Path) -> None:
    class Stubborn(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("not today")

    (path := tmp_path / "model.onnx").write_bytes(b"old")
    model = CosineModel(small_model(backbone="custom").card, Stubborn())
    with pytest.raises(FewgraftError, match="backbone custom cannot be exported"):
        export_onnx(model, path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_an_onnx_backbone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FewgraftError, match="backbone is an ONNX file"):
        export_onnx(small_model(backbone="onnx:net.onnx"), tmp_path / "model.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_missing_packages(tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(FewgraftError, match=f"needs the package {package}") as caught:
        export_onnx(small_model(), tmp_path / "model.onnx")
    assert "fewgraft[onnx]" in caught.value.hint


def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    empty = extra("onnx", "onnx").ModelProto()
    monkeypatch.setattr("fewgraft.export.onnx_graph", lambda *_: empty)
    with pytest.raises(FewgraftError, match="cannot write"):
        export_onnx(small_model(), tmp_path / "file" / "model.onnx")
