"""Every kind of file that is read: how a valid one is made, and how it is read.

A new reader is one more line of `READERS`; the tests and the campaign damage its files.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from campaign.layouts import (
    MINI_TABLES,
    cifar_parquet,
    cifar_pickles,
    mini_pickles,
    mini_tables,
    noise,
    photo_tree,
    tiered_pairs,
)
from fewgraft.app.features.cache import FeatureCache
from fewgraft.app.features.given import labelled_photos, unlabelled_photos
from fewgraft.backbones import backbone_spec, create_backbone, trained_backbone
from fewgraft.base_knowledge import (
    BaseKnowledge,
    KnowledgeCard,
    load_knowledge,
    save_knowledge,
)
from fewgraft.bench.chosen_rows import NoRowsError
from fewgraft.bench.report import read_figures, write_figure
from fewgraft.bench.results import Results, Row
from fewgraft.bench.runner import job_of
from fewgraft.bench.tables import LAYOUTS, build
from fewgraft.checkpoints import read_checkpoint
from fewgraft.data.build import Item, Source, build_store
from fewgraft.data.parts import Part
from fewgraft.data.pictures import PictureError, read_picture
from fewgraft.data.sources import SourceOptions, open_source
from fewgraft.data.store import open_store, verify_store
from fewgraft.episodes import EpisodeSettings
from fewgraft.errors import FewgraftError
from fewgraft.extras import extra
from fewgraft.feature_bank import feature_bank
from fewgraft.heads import read_head
from fewgraft.methods import methods
from fewgraft.metrics import Scores, summarise
from fewgraft.model import CosineModel, ModelCard, embed_all, load_model, new_model, save_model
from fewgraft.network import Network
from fewgraft.pieces import Pieces, PiecesCard, load_pieces, save_pieces
from fewgraft.runtime import Runtime
from fewgraft.training.checkpoint import Progress, check_best, load_checkpoint, save_checkpoint
from fewgraft.training.log import read_log
from fewgraft.training.recipe import load_recipe


@dataclass(frozen=True)
class Reader:
    """Files in a folder that one function reads, or refuses with a `FewgraftError`."""

    name: str
    make: Callable[[Path], object]  # valid files, into an empty folder
    read: Callable[[Path], object]
    weight: float = 1.0  # how many inputs, as a share: some readers are slow
    damaged: str = "*"  # which files


# --- sources and stores ---


def _source(kind: str, inside: str = "", split: str = "") -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        options = SourceOptions(size=8, split=folder / split if split else None)
        source = open_source(kind, folder / inside, options)
        for item in source.items:
            try:
                read_picture(item.content, source.size, source.channels)
            except PictureError:
                continue

    return read


def _tree_with(name: str, text: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        photo_tree(folder / "photos")
        (folder / name).write_text(text)

    return make


SPLIT = 'base = ["class 00", "class 01"]\n"novel/val" = ["class 02"]\n"novel/test" = ["class 03"]\n'
CLASSES = "class,part\nclass 00,base\nclass 01,novel/val\nclass 02,novel/test\n"
PICTURES = (
    "picture,part\nclass 00/photo 0.png,base/train\nclass 00/photo 1.png,base/test\n"
    "class 02/photo 3.png,novel/test\n"
)


def _make_store(folder: Path) -> None:
    homes = (Part.BASE_TRAIN, Part.BASE_TEST, Part.NOVEL_VAL, Part.NOVEL_TEST)
    items = [
        Item(noise(i, 16, 16, 3), max(0, part.code - 3), part, f"{i}")
        for i, part in enumerate(homes * 3)
    ]
    build_store(
        Source("made up", Path("nowhere"), ["a", "b", "c"], items, 12, 16), folder / "s", "s"
    )


def _read_store(folder: Path) -> None:
    store = open_store(folder / "s")
    verify_store(store)
    [store.by_class(part) for part in Part]


def _table_of(line: str, name: str = "photos.csv") -> Callable[[Path], None]:
    """A table of photos; `line` is formatted with the class and the path of each."""

    def make(folder: Path) -> None:
        photos = sorted(photo_tree(folder / "photos", 2, 3).rglob("*.png"))
        rows = [line.format(path=p.relative_to(folder), label=p.parent.name) for p in photos]
        head = [line.format(path="path", label="label")] if name.endswith("csv") else []
        (folder / name).write_text("\r\n".join([*head, *rows]))

    return make


def _read_table(folder: Path) -> None:
    for photos in labelled_photos(folder / "photos.csv", 2).values():
        assert all(photo.is_file() for photo in photos)
    unlabelled_photos(folder / "photos.csv")


# --- models ---

RECIPE = {"pretraining": {"augmentation": {"crop": 1, "mirror": True}}}


def _small_model() -> CosineModel:
    model = new_model("conv4", ("ant", "bee", "cat"), 16, 3, (0.5,) * 3, (0.2,) * 3)
    unknown = {"threshold": 0.5, "false_rejects": 0.05, "pictures": 9, "chosen_on": "some"}
    about = {"unknown": unknown, "examples": (3, 3, 3), "metrics": {"acc": 0.5}, "recipe": RECIPE}
    model.card = ModelCard.model_validate({**model.card.model_dump(), **about})
    return model


def _read_model(folder: Path) -> None:
    model = load_model(folder / "m")
    card = model.card
    pixels = noise(0, 2, card.size, card.size, card.channels)
    with torch.inference_mode():
        model.classify(embed_all(model, pixels))
    if any(True for _ in model.backbone.parameters()):
        Network(model, pixels, "all")


def _save_with(spec_of: Callable[[Path], str]) -> Callable[[Path], None]:
    """A model whose backbone is a foreign network."""

    def make(folder: Path) -> None:
        (folder / "source").mkdir()
        spec = backbone_spec(spec_of(folder / "source"))
        card = ModelCard(
            backbone=spec.name,
            backbone_settings=dict(spec.settings),
            width=spec.width,
            classes=("a", "b"),
            size=spec.size,
            channels=3,
            mean=spec.mean or (),
            std=spec.std or (),
        )
        save_model(CosineModel(card, trained_backbone(spec)), folder / "m")

    return make


def _hf_folder(folder: Path) -> str:
    transformers = extra("transformers", "hf")
    config = transformers.ViTConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=16,
        patch_size=8,
    )
    transformers.ViTModel(config).eval().save_pretrained(folder)
    about = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return f"hf:{folder}"


def onnx_network(folder: Path, head: bool = False) -> str:
    """A convolution, averaged; or a product with class weights."""
    onnx = extra("onnx", "onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    rng = np.random.default_rng(0)

    def constant(name: str, *shape: int) -> Any:
        return onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)

    if head:
        nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)]
        weights, shape, output = [constant("w", 3, 4)], ["n", 4], [None, 3]
    else:
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["c"], strides=[2, 2]),
            helper.make_node("GlobalAveragePool", ["c"], ["p"]),
            helper.make_node("Flatten", ["p"], ["y"]),
        ]
        weights, shape, output = [constant("w", 5, 3, 3, 3)], ["n", 3, 16, 16], [None, 5]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", floats, shape)],
        [helper.make_tensor_value_info("y", floats, output)],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (folder / "network.onnx").write_bytes(made.SerializeToString())
    return f"onnx:{folder / 'network.onnx'}"


def _backbone(prefix: str, file: str = "") -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        trained_backbone(backbone_spec(f"{prefix}:{folder / file}"))

    return read


# --- heads ---


def _make_head(suffix: str, names: str = "names.txt") -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        listed = ["ant", "bee", "cat"]
        text = json.dumps(listed) if names.endswith("json") else "\n".join(listed)
        (folder / names).write_text(text)
        tensors = {"fc.weight": torch.arange(12.0).view(3, 4) + 1, "fc.bias": torch.ones(3)}
        if suffix == "onnx":
            onnx_network(folder, head=True)
        elif suffix == "safetensors":
            save_file(tensors, folder / "head.safetensors")
        else:
            new = suffix == "pt"
            torch.save(tensors, folder / f"head.{suffix}", _use_new_zipfile_serialization=new)

    return make


def _read_head(folder: Path) -> None:
    (names,) = folder.glob("names.*")
    (head,) = set(folder.iterdir()) - {names}
    for tensor in ("", "#fc.weight", "#w"):
        with _refusal():
            read_head(f"{head}{tensor}", names, width=None)
    read_head(head, names)


def _make_checkpoint_of_others(suffix: str) -> Callable[[Path], None]:
    """A network inside a checkpoint, as training scripts save one."""

    def make(folder: Path) -> None:
        state = create_backbone("conv4").state_dict()
        encoder = {f"module.encoder.{name}": tensor for name, tensor in state.items()}
        if suffix == "safetensors":
            flat = {f"model.{name}": tensor for name, tensor in encoder.items()}
            save_file(flat, folder / "network.safetensors")
            return
        content = {"opt": argparse.Namespace(lr=0.1), "model": encoder, "epoch": 3}
        new = suffix == "pth"
        torch.save(content, folder / f"network.{suffix}", _use_new_zipfile_serialization=new)

    return make


def _read_checkpoint_of_others(folder: Path) -> None:
    (file,) = folder.iterdir()
    for name in ("conv4", "resnet12-tiny"):
        with _refusal():
            read_checkpoint(file, name)
    read_checkpoint(f"{file}#model.module.encoder", "conv4")


class _refusal:  # noqa: N801
    """A refusal here does not keep the rest from being read."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, FewgraftError)


# --- recipes and runs ---


def _make_recipe(folder: Path) -> None:
    from fewgraft.training.recipe import EMBEDDED

    (folder / "recipe.toml").write_text((EMBEDDED / "cifar-fs.toml").read_text())


def _read_recipe(folder: Path) -> None:
    recipe = load_recipe(str(folder / "recipe.toml"))
    recipe.model_dump_json()
    for spec in methods().values():
        for shots in (1, 5):
            spec.method.changed(**recipe.hyper(spec.name, shots))


def _make_settings(folder: Path) -> None:
    changes = {"pretraining.steps": "10", "metatraining.optimisation.lr": "0.1", "name": "mine"}
    (folder / "set.json").write_text(json.dumps(changes))


def _read_settings(folder: Path) -> None:
    try:
        content = json.loads((folder / "set.json").read_bytes())
    except (ValueError, RecursionError):
        return
    content = content if isinstance(content, dict) else {"name": content, "": content}
    load_recipe("icons", {str(key): str(value) for key, value in content.items()})


def _checkpoint_parts() -> tuple[CosineModel, torch.optim.SGD]:
    model = _small_model()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _make_checkpoint(folder: Path) -> None:
    model, optimiser = _checkpoint_parts()
    model(torch.rand(2, 3, 16, 16)).sum().backward()
    optimiser.step()
    progress = Progress("run", 5, 4, 0.5, [{"step": 2, "score": 0.1}, {"step": 4, "score": 0.5}])
    best = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_checkpoint(folder / "p.checkpoint", progress, model, optimiser, best)


def _read_checkpoint(folder: Path) -> None:
    model, optimiser = _checkpoint_parts()
    path = folder / "p.checkpoint"
    progress, best = load_checkpoint(path, "run", model, optimiser)
    check_best(path, progress, best, model.state_dict())


def _make_pieces(folder: Path) -> None:
    tensors = {"keys": torch.rand(3, 4), "scale": torch.tensor(2.0)}
    card = PiecesCard(
        method="lwof",
        shots=1,
        hyper={},
        stage="pre-trained",
        weights="0" * 16,
        data="colours",
        settings={"steps": 5},
        metrics={"val_score": 50.0},
    )
    save_pieces(Pieces(card, tensors), folder)


def _make_knowledge(folder: Path) -> None:
    knowledge = BaseKnowledge(torch.rand(2, 3, 4), torch.eye(4), torch.eye(3))
    card = KnowledgeCard(stage="algorithm-2", weights="0" * 16, data="colours")
    save_knowledge(knowledge, card, folder)


def _read_knowledge(folder: Path) -> None:
    found, _ = load_knowledge(folder, "algorithm-2", torch.empty(2, 4), "0" * 16)
    assert all(torch.isfinite(tensor).all() for tensor in found.tensors.values())


def _make_log(folder: Path) -> None:
    rows = [{"step": step, "loss": 1 / step, "val_score": step} for step in range(1, 9)]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- results, features, figures ---


def _make_results(folder: Path) -> None:
    results = Results(folder)
    for method, setting in (("+pr", "s2i"), ("meta-inc-baseline", "incremental")):
        settings = EpisodeSettings.paper(setting, 1)
        scores = Scores(*(torch.rand(4, dtype=torch.float64) for _ in dataclasses.fields(Scores)))
        spec = methods()[method]
        row = Row(
            id=method.strip("+"),
            recipe="icons",
            method=method,
            title=spec.title,
            setting=setting,
            shots=1,
            episodes=4,
            split="test",
            hyper={},
            stage=spec.stage,
            models="zoo",
            weights="w",
            backbone="conv4",
            data="icons",
            content="c",
            episode_settings=dataclasses.asdict(settings),
            episode_hash=settings.hash,
            n_base=108,
            ways=5,
            metrics={name: (one.mean, one.half) for name, one in summarise(scores).items()},
            seconds=1.0,
            versions={},
            machine="",
        )
        results.append(row, scores)


def _read_results(folder: Path) -> None:
    results = Results(folder)
    for row in results.rows():
        _ = job_of(row).configured if row.method in methods() else None
    for layout in LAYOUTS:
        try:
            build(results, layout)
        except NoRowsError:
            continue


def _make_bank(folder: Path) -> None:
    _make_store(folder)
    _read_bank(folder)


def _read_bank(folder: Path) -> None:
    model = new_model("conv4", ("a",), 16, 3, (0.5,) * 3, (0.2,) * 3).eval()
    feature_bank(model, open_store(folder / "s"), np.arange(12), folder / "bank")


def _make_cache(folder: Path) -> None:
    cache = FeatureCache(folder / "cache", 4)
    cache.put({bytes([i] * 16): noise(i, 4).astype(np.float32) for i in range(9)})
    cache.flush()


def _read_cache(folder: Path) -> None:
    cache = FeatureCache(folder / "cache", 4)
    for i in range(256):
        if bytes([i] * 16) in cache:
            assert np.isfinite(cache[bytes([i] * 16)]).all()


def _make_network(folder: Path) -> None:
    runtime = Runtime(_small_model().eval(), root=folder, tell=lambda _: None)
    runtime.expect(10**9)


def _read_network(folder: Path) -> None:
    """A damaged one is not used; the features are PyTorch's in any case."""
    model, pixels = _small_model().eval(), noise(0, 2, 16, 16, 3)
    runtime = Runtime(model, root=folder, tell=lambda _: None)
    runtime.consider(pixels, 0)
    np.testing.assert_allclose(runtime(pixels), embed_all(model, pixels), rtol=1e-3, atol=1e-4)


def _make_figure(folder: Path) -> None:
    from matplotlib.figure import Figure

    write_figure(Figure(figsize=(1, 1)), "what it shows", folder / "ratio.png")


READERS = (
    Reader("CIFAR-100 as parquet", cifar_parquet, _source("cifar-fs")),
    Reader("CIFAR-100 as pickles", lambda f: cifar_pickles(f, 1), _source("cifar-fs"), 0.6),
    Reader("mini-ImageNet as pickles", lambda f: mini_pickles(f, 1, 4), _source("mini-imagenet")),
    Reader(
        "mini-ImageNet as tables",
        lambda f: mini_tables(f, MINI_TABLES, 1, 8),
        _source("mini-imagenet"),
        damaged="*.csv",
    ),
    Reader(
        "tiered-ImageNet as PNG", lambda f: tiered_pairs(f, "png", 8), _source("tiered-imagenet")
    ),
    Reader(
        "tiered-ImageNet as npz", lambda f: tiered_pairs(f, "npz", 8), _source("tiered-imagenet")
    ),
    Reader(
        "split by TOML",
        _tree_with("s.toml", SPLIT),
        _source("folder", "photos", "s.toml"),
        1,
        "s.toml",
    ),
    Reader(
        "split by class",
        _tree_with("s.csv", CLASSES),
        _source("folder", "photos", "s.csv"),
        1,
        "s.csv",
    ),
    Reader(
        "split by picture",
        _tree_with("s.csv", PICTURES),
        _source("folder", "photos", "s.csv"),
        1,
        "s.csv",
    ),
    Reader("table of photos", _table_of("{path},{label}"), _read_table, 1, "*.csv"),
    Reader("table by semicolons", _table_of("{label};0;{path}"), _read_table, 1, "*.csv"),
    Reader(
        "list of photos",
        _table_of("{path}", "pile.txt"),
        lambda f: unlabelled_photos(f / "pile.txt"),
        1,
        "*.txt",
    ),
    Reader("data set", _make_store, _read_store, 2),
    Reader("model", lambda f: save_model(_small_model(), f / "m"), _read_model, 2),
    Reader("model on a transformer", _save_with(_hf_folder), _read_model, 0.5, "m/*"),
    Reader("model on an ONNX file", _save_with(onnx_network), _read_model, 0.05, "m/*"),
    Reader("folder of transformers", _hf_folder, _backbone("hf"), 0.5),
    Reader("ONNX network", onnx_network, _backbone("onnx", "network.onnx"), 0.1),
    Reader("head in safetensors", _make_head("safetensors"), _read_head),
    Reader("head in PyTorch's file", _make_head("pt", "names.json"), _read_head, 2),
    Reader("head in PyTorch's old file", _make_head("pth"), _read_head, 2),
    Reader("head in ONNX", _make_head("onnx"), _read_head, 2),
    Reader(
        "checkpoint of others in safetensors",
        _make_checkpoint_of_others("safetensors"),
        _read_checkpoint_of_others,
        0.1,
    ),
    Reader(
        "checkpoint of others",
        _make_checkpoint_of_others("pth"),
        _read_checkpoint_of_others,
        0.15,
    ),
    Reader(
        "checkpoint of others in the old format",
        _make_checkpoint_of_others("ckpt"),
        _read_checkpoint_of_others,
        0.15,
    ),
    Reader("recipe", _make_recipe, _read_recipe, 2),
    Reader("changes to a recipe", _make_settings, _read_settings),
    Reader("checkpoint", _make_checkpoint, _read_checkpoint, 2),
    Reader("pieces", _make_pieces, lambda f: load_pieces(f, "lwof", 1), 1, "lwof-1-shot/*"),
    Reader("base knowledge", _make_knowledge, _read_knowledge, 1, "algorithm-2-knowledge/*"),
    Reader("log", _make_log, lambda f: read_log(f / "log.jsonl")),
    Reader("results", _make_results, _read_results, 2),
    Reader("features of a data set", _make_bank, _read_bank, 0.5, "bank/*/*"),
    Reader("features of photos", _make_cache, _read_cache),
    Reader("exported network", _make_network, _read_network, 0.2),
    Reader("figure", _make_figure, lambda f: list(read_figures(f))),
)
