"""Networks of others: every usual layout gives the features that a naive network of it gives."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, max_pool2d
from typer.testing import CliRunner

import fewgraft
from fewgraft.backbones import create_backbone
from fewgraft.bench.results import Results
from fewgraft.checkpoints import read_checkpoint
from fewgraft.cli import app
from fewgraft.data.build import Item, Source, build_store
from fewgraft.data.catalogue import data_root
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import bank_root
from fewgraft.home import imports_root
from fewgraft.imported_model import InputPictures, import_network
from fewgraft.methods import method_spec
from fewgraft.model import embed_all, load_model

WIDTHS = {"resnet12-256": (64, 96, 128, 256), "resnet12-512": (64, 128, 256, 512)}
SMALL = "resnet12-256"
SIZE, BASE = 16, 8

State = dict[str, Tensor]


class Residual(nn.Module):
    """A block as papers draw it; its shortcut has the name that a repository gives it."""

    def __init__(self, inputs: int, outputs: int, shortcut: str) -> None:
        super().__init__()
        for number, width in enumerate((inputs, outputs, outputs), 1):
            self.add_module(f"conv{number}", nn.Conv2d(width, outputs, 3, padding=1, bias=False))
            self.add_module(f"bn{number}", nn.BatchNorm2d(outputs))
        beside = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.add_module(shortcut, beside)
        self.beside: list[nn.Module] = [beside]  # a list does not make it a layer once more

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number in (1, 2, 3):
            convolution, norm = (self.get_submodule(f"{kind}{number}") for kind in ("conv", "bn"))
            y = norm(convolution(y))
            y = leaky_relu(y if number < 3 else y + self.beside[0](x), 0.1)
        return max_pool2d(y, 2)


class Foreign(nn.Module):
    """Four blocks in one of three layouts, with a linear head."""

    def __init__(self, widths: tuple[int, ...], layout: str) -> None:
        super().__init__()
        shortcut = "shortcut" if layout == "easy" else "downsample"
        ends = zip((3, *widths), widths, strict=False)
        blocks = [Residual(inputs, outputs, shortcut) for inputs, outputs in ends]
        if layout == "easy":
            self.layers = nn.Sequential(*blocks)
            self.linear = nn.Linear(widths[-1], BASE)
        else:
            for number, block in enumerate(blocks, 1):
                one: nn.Module = nn.Sequential(block) if layout == "metaoptnet" else block
                self.add_module(f"layer{number}", one)
            self.classifier = nn.Linear(widths[-1], BASE)
        self.blocks = [blocks]  # of no layer's name

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks[0]:
            x = block(x)
        return x.flatten(2).mean(2)


def foreign(widths: tuple[int, ...] = WIDTHS[SMALL], layout: str = "metaoptnet") -> Foreign:
    """With statistics that are not those of a new network."""
    torch.manual_seed(0)
    network = Foreign(widths, layout).eval()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_mean, -0.2, 0.2)  # type: ignore[arg-type]
            nn.init.uniform_(layer.running_var, 0.5, 2.0)  # type: ignore[arg-type]
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.uniform_(layer.bias, -0.2, 0.2)
    return network


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def plain(state: State) -> Any:
    return state


def rfs(state: State) -> Any:
    return {"opt": argparse.Namespace(lr=0.1, model="resnet12"), "model": state}


def meta_baseline(state: State) -> Any:
    training = {"epoch": 3, "optimizer_sd": {"state": {0: {"momentum_buffer": torch.ones(2)}}}}
    rest = {"model": "classifier", "model_args": {"encoder": "resnet12"}, "training": training}
    return {**rest, "model_sd": {**prefixed(state, "encoder."), "temp": torch.tensor(10.0)}}


def deep_emd(state: State) -> Any:
    return {"params": prefixed(state, "module.encoder.")}


def metaoptnet(state: State) -> Any:
    return {"embedding": prefixed(state, "module."), "head": {"scale": torch.ones(1)}}


def old(state: State) -> Any:
    """From before normalisation counted its batches."""
    return {"state_dict": {n: t for n, t in state.items() if "num_batches" not in n}}


@pytest.mark.numerical
@pytest.mark.parametrize("backbone", WIDTHS)
@pytest.mark.parametrize(
    ("layout", "wrap", "file"),
    [
        ("metaoptnet", metaoptnet, "a.pth"),
        ("metaoptnet", rfs, "a.pth"),
        ("metaoptnet", deep_emd, "a.pth.tar"),
        ("metaoptnet", old, "a.ckpt"),
        ("meta-baseline", meta_baseline, "a.pth"),
        ("easy", plain, "a.pt"),
        ("easy", plain, "a.safetensors"),
    ],
)
def test_the_features_are_those_of_the_layouts_own_network(
    tmp_path: Path, backbone: str, layout: str, wrap: Callable[[State], Any], file: str
) -> None:
    network = foreign(WIDTHS[backbone], layout)
    content = wrap(network.state_dict())
    path = tmp_path / file
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    pictures = torch.rand(4, 3, 36, 36) - 0.5
    with torch.inference_mode():
        expected = network(pictures)
        found = read_checkpoint(path, backbone)(pictures)
    assert found.shape == (4, WIDTHS[backbone][-1])
    assert expected.std() > 0.01, "features that tell pictures apart"
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_network_of_ours_and_one_in_half_precision(tmp_path: Path) -> None:
    ours = create_backbone("conv4").eval()
    torch.save(ours.state_dict(), tmp_path / "a.pt")
    pictures = torch.rand(2, 3, 32, 32)
    found = read_checkpoint(tmp_path / "a.pt", "conv4")
    with torch.inference_mode():
        torch.testing.assert_close(found(pictures), ours(pictures))
    half = {n: t.half() if t.is_floating_point() else t for n, t in ours.state_dict().items()}
    torch.save(half, tmp_path / "b.pt")
    assert next(read_checkpoint(tmp_path / "b.pt", "conv4").parameters()).dtype == torch.float32


def saved(path: Path, change: Callable[[State], object] = lambda _: None, **layout: Any) -> Path:
    state = foreign(**layout).state_dict()
    change(state)
    torch.save(state, path)
    return path


def refusal(path: Path | str, backbone: str = SMALL) -> FewgraftError:
    with pytest.raises(FewgraftError) as caught:
        read_checkpoint(path, backbone)
    return caught.value


def test_other_widths_are_named_with_the_backbone_that_has_them(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", widths=WIDTHS["resnet12-512"])
    error = refusal(path)
    assert "does not fit resnet12-256" in error.problem
    assert "layer2.0.conv1.weight is [128, 64, 3, 3], not [96, 64, 3, 3]" in error.hint
    assert "more." in error.hint
    assert "It fits --backbone resnet12-512." in error.hint
    assert "It fits --backbone resnet12-512." in refusal(path, "resnet12-narrow").hint
    none = saved(tmp_path / "b.pth", widths=(8, 8, 8, 8))
    assert "fits --" not in refusal(none).hint


def test_what_is_missing_and_what_is_there_besides_is_listed(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.pth", lambda state: state.pop("layer3.0.bn2.weight"))
    assert refusal(path).hint == "It lacks: block3.residual.4.weight."
    squeezed = {"layer1.0.se.fc.0.weight": torch.ones(4, 64)}
    path = saved(tmp_path / "a.pth", lambda state: state.update(squeezed))
    assert refusal(path).hint == "It has besides: layer1.0.se.fc.0.weight."
    path = saved(tmp_path / "a.pth", lambda state: state.update({"conv1.weight": torch.ones(1)}))
    assert refusal(path).hint == "It has besides: conv1.weight."


def test_one_of_two_networks_is_named_by_its_prefix(tmp_path: Path) -> None:
    student, teacher = foreign().state_dict(), foreign(layout="easy").state_dict()
    teacher = {name: tensor + 1 for name, tensor in teacher.items()}
    path = tmp_path / "a.pth"
    torch.save({"student": student, "teacher": teacher}, path)
    error = refusal(path)
    assert "more than one network" in error.problem
    assert "a.pth#teacher" in error.hint
    assert refusal(f"{path}#other").problem.endswith("known layout below 'other'")
    network = read_checkpoint(f"{path}#teacher", SMALL)
    weight = network.state_dict()["block1.residual.0.weight"]
    assert torch.equal(weight, teacher["layers.0.conv1.weight"])


class Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("a pickle ran",)


def test_a_pickle_never_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for evil in (Evil(), argparse.Namespace(inside=Evil()), np.float64(0.5)):
        torch.save({"model": foreign().state_dict(), "opt": evil}, tmp_path / "a.pth")
        error = refusal(tmp_path / "a.pth")
        assert "refused" in error.problem
        assert "state_dict()" in error.hint
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda s: s.update({"layer1.0.bn1.bias": torch.full((64,), torch.nan)}), "not finite"),
        (lambda s: s["layer1.0.bn1.running_var"].fill_(-1), "below 0"),
        (lambda s: s.update({"layer1.0.bn1.bias": torch.ones(1).expand(64)}), "no array"),
        (lambda s: s.update({"layer1.0.bn1.bias": torch.ones(64).long()}), "no array"),
        (lambda s: s.update({"layer1.bn1.bias": torch.ones(64)}), "two tensors for one layer"),
        (lambda s: s.clear(), "no tensors"),
    ],
)
def test_odd_tensors_are_refused(
    tmp_path: Path, change: Callable[[State], object], problem: str
) -> None:
    error = refusal(saved(tmp_path / "a.pth", change))
    assert problem in f"{error.problem} {error.hint}"


def test_files_that_are_no_checkpoints(tmp_path: Path) -> None:
    assert "is not a file" in refusal(tmp_path / "absent.pth").problem
    (tmp_path / "a.txt").write_text("weights")
    assert "no known kind" in refusal(tmp_path / "a.txt").problem
    (tmp_path / "a.pth").write_bytes(b"PK\x03\x04 no archive")
    assert "not a file of PyTorch weights" in refusal(tmp_path / "a.pth").problem
    assert "there is no backbone" in refusal(tmp_path / "a.pth", "resnet13").problem


# --- as a benchmark ---

BASE_COUNTS = {Part.BASE_TRAIN: 6, Part.BASE_VAL: 42, Part.BASE_TEST: 42}


def make_store() -> ImageStore:
    """Classes of one colour each, with noise; enough pictures for the paper's episodes."""
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 216, (BASE + 10, 3))
    homes = [part for part, count in BASE_COUNTS.items() for _ in range(count)]
    items = []
    for label, colour in enumerate(colours):
        novel = [Part.NOVEL_VAL if label < BASE + 5 else Part.NOVEL_TEST] * 72
        for number, part in enumerate(homes if label < BASE else novel):
            pixels = colour + rng.normal(0, 60, (SIZE, SIZE, 3))
            content = pixels.clip(0, 255).astype(np.uint8)
            items.append(Item(content, label, part, f"{label} {number}"))
    classes = [f"class {label:02}" for label in range(BASE + 10)]
    source = Source("made up", Path("nowhere"), classes, items, len(items), SIZE)
    return build_store(source, data_root() / "dots", "dots")


def command(*words: str) -> Any:
    return CliRunner().invoke(app, ["bench", *words])


NORMALISED = ("--mean", "0.5,0.5,0.4", "--std", "0.25,0.25,0.3")


def test_a_checkpoint_becomes_a_benchmark_of_its_own(tmp_path: Path) -> None:
    store, network = make_store(), foreign()
    torch.save({"params": prefixed(network.state_dict(), "encoder.")}, tmp_path / "a.pth")
    words = ("--checkpoint", str(tmp_path / "a.pth"), "--backbone", SMALL, "--data", "dots")
    result = command("import", "mine", *words, *NORMALISED)
    assert result.exit_code == 0, result.output
    assert result.output.count("(chosen)") == 1
    model = load_model(imports_root() / "mine")
    pixels = torch.from_numpy(np.array(store.pictures[:6])).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.5, 0.5, 0.4), (0.25, 0.25, 0.3)))
    with torch.inference_mode():
        expected = network((pixels - mean) / std)
    found = embed_all(model, store.pictures[:6])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    lengths = expected.norm(dim=1, keepdim=True)
    direction = (expected / lengths).mean(0)  # the first class has six pictures in base/train
    cosine = torch.cosine_similarity(model.weight[0], direction, dim=0)
    assert cosine.item() == pytest.approx(1, abs=1e-5)
    banks = list(bank_root().iterdir())
    assert len(banks) == 1, "features of val are kept for rows of val"
    run = ("--settings", "s2i", "--shots", "1", "--episodes", "4", "--out", str(tmp_path / "r"))
    result = command("run", "mine", "--methods", "+pr,proposed-without-adaptation", *run)
    assert result.exit_code == 0, result.output
    first, second = Results(tmp_path / "r").rows()
    assert (first.backbone, first.data) == (SMALL, "dots")
    assert first.weights == second.weights, "one network for all stages"
    assert command("rerun", first.id, "--in", str(tmp_path / "r")).exit_code == 0
    assert command("table", str(tmp_path / "r")).exit_code == 0
    val = ("--methods", "+pr", "--settings", "s2i", "--split", "val", "--episodes", "2")
    result = command("run", "mine", *val, "--shots", "1", "--out", str(tmp_path / "v"))
    assert result.exit_code == 0, result.output
    assert len(list(bank_root().iterdir())) == len(banks) + 1, "of test only"


def test_a_head_gives_the_base_classes_by_their_names(tmp_path: Path) -> None:
    store, network = make_store(), foreign()
    state = network.state_dict()
    torch.save({"model": state}, tmp_path / "a.pth")
    names = list(reversed(store.base_classes))
    (tmp_path / "names.txt").write_text("\n".join(names))
    words = ("--checkpoint", str(tmp_path / "a.pth"), "--backbone", SMALL, "--data", "dots")
    head = ("--head", f"{tmp_path / 'a.pth'}#model.classifier.weight")
    listed = ("--names", str(tmp_path / "names.txt"))
    result = command("import", "mine", *words, *head, *listed, "--gamma", "7")
    assert result.exit_code == 0, result.output
    assert "normalised by mean" in result.output
    model = load_model(imports_root() / "mine")
    assert model.gamma.item() == 7
    torch.testing.assert_close(model.weight.detach(), state["classifier.weight"].flip(0))
    (tmp_path / "names.txt").write_text("\n".join([*names[1:], "class 99"]))
    result = command("import", "mine", *words, *head, *listed)
    with pytest.raises(FewgraftError, match="does not name the base class 'class 07'"):
        raise result.exception


def test_methods_that_move_the_network_have_one(tmp_path: Path) -> None:
    store = make_store()
    pictures = InputPictures((0.5,) * 3, (0.25,) * 3, SIZE)
    network = read_checkpoint(saved(tmp_path / "a.pth"), SMALL)
    kept = import_network(network, SMALL, "mine", store, pictures, gamma=10.0)
    proposed = method_spec("proposed").method.changed(steps=1)
    found = fewgraft.evaluate(
        proposed, data=store, model=kept.folder, setting="s2i", shots=1, episodes=2
    )
    assert 0 <= found.summary()["acc"].mean <= 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "either --features or --checkpoint"),
        (("--features", "f.npz", "--checkpoint", "a.pth"), "either --features or"),
        (("--features", "f.npz", "--data", "dots"), "--data belongs to --checkpoint"),
        (("--checkpoint", "a.pth", "--data", "dots"), "needs --backbone"),
        (("--checkpoint", "a.pth", "--backbone", SMALL), "needs --data"),
        (("--checkpoint", "a.pth", "--backbone", SMALL, "--data", "absent"), "absent"),
    ],
)
def test_words_that_do_not_go_together(words: tuple[str, ...], problem: str) -> None:
    result = command("import", "mine", *words)
    with pytest.raises(FewgraftError, match=problem):
        raise result.exception


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--size", "84"), "for 84 pixels, dots has 16"),
        (("--mean", "0.5"), "--mean has 1 numbers"),
        (("--mean", "120,115,104"), "from 0 to 1"),
        (("--std", "0,0.1,0.1"), "from 0 to 1"),
        (("--std", "a,b"), "not a list of numbers"),
        (("--head", "a.pth"), "belong together"),
    ],
)
def test_pictures_that_do_not_fit(tmp_path: Path, words: tuple[str, ...], problem: str) -> None:
    make_store()
    path = saved(tmp_path / "a.pth")
    known = ("--checkpoint", str(path), "--backbone", SMALL, "--data", "dots", "--gamma", "9")
    result = command("import", "mine", *known, *words)
    with pytest.raises(FewgraftError, match=problem):
        raise result.exception
    assert not imports_root().exists()
