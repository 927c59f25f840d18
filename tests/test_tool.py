"""The tool on real pictures: the three commands, and whatever a folder of photos may hold."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.utils.estimator_checks import parametrize_with_checks

import fewgraft
from fewgraft import runtime
from fewgraft.app.estimator import FewgraftClassifier
from fewgraft.app.features import embedding
from fewgraft.app.features.cache import FeatureCache
from fewgraft.app.features.embedding import Embedder
from fewgraft.app.learning.adapting import learn_adapted
from fewgraft.app.learning.learn import LearnSettings, learn
from fewgraft.app.learning.predicting import predict
from fewgraft.app.learning.saving import open_classifier
from fewgraft.cli import main
from fewgraft.data.parts import Part
from fewgraft.data.pictures import read_picture
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.methods.distilled_adaptation import DistilledAdaptation
from fewgraft.model import CosineModel, ModelCard, load_model

Run = Callable[..., subprocess.CompletedProcess[str]]
NEW = ("robot", "sun", "wallet")


@pytest.fixture(scope="module")
def photos(icons: ImageStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of real icons: new classes, U, old ones to check with."""
    root = tmp_path_factory.mktemp("my photos")

    def write(folder: str, pictures: "list[int]") -> None:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number, picture in enumerate(pictures):
            image = Image.fromarray(icons.pictures[picture][:, :, 0])
            image.save(root / folder / f"photo {picture} {number}.png")

    def of(part: Part, name: str) -> "list[int]":
        found = icons.indices(part)
        label = icons.manifest.classes.index(name)
        return [int(picture) for picture in found[icons.labels[found] == label]]

    unlabelled: list[int] = []
    for name in NEW:
        own = of(Part.NOVEL_TEST, name)
        write(f"new/{name}", own[:4])
        unlabelled += own[4:24]
        write("inbox", own[24:34])
    for name in icons.base_classes[:40]:
        write(f"old val/{name}", of(Part.BASE_VAL, name)[:4])
        unlabelled += of(Part.BASE_TEST, name)[:2]
    for name in icons.base_classes[:6]:
        write(f"old/{name}", of(Part.BASE_TRAIN, name)[:12])
    write("pile", unlabelled)
    return root


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(*arguments: "str | Path") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fewgraft", *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return call


@pytest.fixture(scope="module")
def model() -> CosineModel:
    return open_classifier("icons")


def bytes_below(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_three_commands_and_three_more(run: Run, photos: Path, tmp_path: Path) -> None:
    backbone = Path(fewgraft.__file__).parent / "zoo_models" / "icons" / "algorithm-2"
    done = run("base", photos / "old", "--backbone", backbone, "--out", "v1")
    assert done.returncode == 0, done.stderr
    assert "6 classes from 72 photos" in done.stdout
    assert "held out accuracy" in done.stdout
    card = load_model(tmp_path / "v1").card
    assert card.whitened
    assert card.border is not None
    v1 = bytes_below(tmp_path / "v1")
    learnt = run(
        *("learn", "v1", "--new", photos / "new", "--unlabelled", photos / "pile"), "--out", "v2"
    )
    assert learnt.returncode == 0, learnt.stderr
    assert "learnt robot (4), sun (4), wallet (4)" in learnt.stdout
    report = (tmp_path / "v2" / "report.html").read_text()
    assert "Where new classes begin" in report
    assert "with a poor pile" in report
    assert bytes_below(tmp_path / "v1") == v1, "going back is using v1"
    assert load_model(tmp_path / "v2").card.classes[-3:] == NEW
    # Again: what was new is old now; a known class gets more examples; without U.
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "sun").symlink_to(photos / "old" / "../inbox")
    again = run("learn", "v2", "--new", "newer", "--out", "v3")
    assert again.returncode == 0, again.stderr
    card = load_model(tmp_path / "v3").card
    assert card.classes == load_model(tmp_path / "v2").card.classes
    assert card.examples[card.classes.index("sun")] == 4 + 30
    assert len(card.lessons) == 2
    assert run("predict", "v2", photos / "inbox", "--csv", "out.csv").returncode == 0
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert len(rows) == 30
    assert {row["label"] for row in rows} & set(NEW)
    one = run("predict", "v2", next((photos / "inbox").iterdir()))
    assert one.returncode == 0
    assert len(one.stdout.splitlines()) == 1
    # Where nothing is good enough, a class is named for each photo on request.
    content = json.loads((tmp_path / "v2" / "model.json").read_text())
    content["unknown"]["threshold"] = 1e6
    (tmp_path / "v2" / "model.json").write_text(json.dumps(content))
    usual, named = (
        [line.split("\t")[1] for line in done.stdout.splitlines()]
        for done in (run("predict", "v2", photos / "inbox", *m) for m in ((), ("--no-unknown",)))
    )
    assert set(usual) == {"unknown"}
    assert named == [row["best"] for row in rows]


def test_foreign_photos_measure_unknown(photos: Path, run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "other things").mkdir()
    for number in range(8):
        noise = Image.fromarray(rng.integers(0, 256, (32, 32), np.uint8))
        noise.save(tmp_path / "other things" / f"{number}.png")
    done = run(
        *("learn", "icons", "--new", photos / "new", "--check", photos / "old val"),
        *("--foreign", "other things", "--out", "v2"),
    )
    assert done.returncode == 0, done.stderr
    foreign = json.loads((tmp_path / "v2" / "lesson.json").read_text())["foreign"]
    assert foreign["photos"] == 8
    assert foreign["rejected"] > 4, "noise is like no icon"
    assert foreign["auroc"] > 0.8
    assert f"{foreign['rejected']} of 8 foreign photos" in done.stdout
    assert "Of 8 foreign photos" in (tmp_path / "v2" / "report.html").read_text().replace(
        "\N{NO-BREAK SPACE}", " "
    )


def test_what_a_lesson_leaves_behind(photos: Path, run: Run, tmp_path: Path) -> None:
    done = run(
        *("learn", "icons", "--new", photos / "new", "--unlabelled", photos / "pile"),
        *("--check", photos / "old val", "--out", "v2", "--review", "7"),
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "v2" / "lesson.json").read_text())
    old = figures["old_classes"]
    assert old["photos"] == 160
    assert old["before"] - old["after"] <= 0.02 + 1e-6
    assert f"{old['before']:.1%} before, {old['after']:.1%} after" in done.stdout
    assert figures["taught"] == dict.fromkeys(NEW, 4)
    unlabelled = list(csv.DictReader((tmp_path / "v2" / "pile.csv").open()))
    assert len(unlabelled) == 140
    helped = [row for row in unlabelled if row["helped"]]
    assert len(helped) == figures["pile"]["helped"] > 10
    assert all(row["helped"] in NEW and 1 <= int(row["step"]) <= 5 for row in helped)
    assert len(list(csv.DictReader((tmp_path / "v2" / "review.csv").open()))) == 7
    assert 0 < figures["unknown"]["false_rejects"] <= 0.05


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("learn", "nothing here", "--new", "{new}", "--out", "v"), "nothing here is not a folder"),
        (("learn", "{new}", "--new", "{new}", "--out", "v"), "holds no classifier"),
        (("learn", "icons", "--new", "{empty}", "--out", "v"), "0 class folders"),
        (
            ("learn", "icons", "--new", "{new}", "--unlabelled", "{empty}", "--out", "v"),
            "no photos",
        ),
        (("learn", "icons", "--new", "{new}", "--out", "{new}"), "exists already"),
        (
            ("learn", "icons", "--new", "{new}", "--check", "{strange}", "--out", "v"),
            "does not know",
        ),
        (("learn", "icons", "--new", "{broken}", "--out", "v"), "no photo of 'sad' can be used"),
        (("learn", "icons", "--new", "{twins}", "--out", "v"), "the same picture"),
        (("predict", "icons", "{empty}"), "no photos"),
        (("predict", "icons", "{broken}"), "none of the photos can be read"),
        (("base", "{new}", "--backbone", "conv4", "--out", "v"), "no weights of its own"),
        (("base", "{new}", "--backbone", "convv4", "--out", "v"), "Did you mean 'conv4'?"),
    ],
)
def test_mistakes_are_told(
    arguments: tuple[str, ...],
    said: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"new": photos / "new", "empty": tmp_path / "empty"}
    for name in ("empty", "strange/never heard of", "broken/sad", "twins/a", "twins/b"):
        (tmp_path / name).mkdir(parents=True)
    picture = next((photos / "inbox").iterdir()).read_bytes()
    for name in ("strange/never heard of/x.png", "twins/a/1.png", "twins/b/2.png"):
        (tmp_path / name).write_bytes(picture)
    (tmp_path / "broken/sad/x.jpg").write_bytes(b"no picture")
    places |= {name: tmp_path / name for name in ("strange", "broken", "twins")}
    words = [argument.format(**places) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["fewgraft", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "v").exists()


def test_all_kinds_of_pictures_and_broken_ones(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "odd ones"
    folder.mkdir()
    picture = Image.open(next((photos / "inbox").iterdir()))
    for mode, name in (("L", "grey.png"), ("CMYK", "print.jpg"), ("P", "palette.gif")):
        picture.convert(mode).save(folder / name)
    picture.convert("RGB").resize((300, 20)).save(folder / "a long one ü.webp")
    (folder / "broken.jpg").write_bytes((folder / "print.jpg").read_bytes()[:200])
    (folder / "empty.png").touch()
    files = sorted(folder.iterdir())
    answers = list(predict(Embedder(open_classifier("icons")), files))
    assert [answer.photo for answer in answers] == list(map(str, files))
    problems = {Path(a.photo).name: a.problem for a in answers if a.problem}
    assert set(problems) == {"broken.jpg", "empty.png"}
    assert problems["empty.png"] == "empty file"


def test_features_are_computed_once(
    photos: Path, model: CosineModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted((photos / "pile").iterdir())
    first = Embedder(model)(files)
    assert len(first.features) == 140

    def never(_: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the network was asked again")

    one_more = np.full((32, 32), 7, np.uint8)
    with monkeypatch.context() as patch:
        patch.setattr(model.backbone, "forward", never)
        again = Embedder(model)([*reversed(files), files[0]])
        np.testing.assert_array_equal(again.features[:-1], first.features[::-1])
        np.testing.assert_array_equal(again.features[-1], first.features[0])
        with pytest.raises(AssertionError):
            Embedder(model)([*files, one_more])
        with pytest.raises(AssertionError):
            Embedder(model, keep=False)(files)


def test_a_segment_that_is_not_whole_is_absent(tmp_path: Path) -> None:
    rows = {bytes([n] * 16): np.full(4, n, np.float32) for n in range(5)}
    cache = FeatureCache(tmp_path, 4)
    cache.put(rows)
    cache.flush()
    assert all(key in FeatureCache(tmp_path, 4) for key in rows)
    [keys] = tmp_path.glob("*.keys")
    keys.write_bytes(keys.read_bytes()[:40])
    assert not any(key in FeatureCache(tmp_path, 4) for key in rows)
    keys.with_suffix(".npy").write_bytes(b"")
    assert not any(key in FeatureCache(tmp_path, 4) for key in rows)


def test_a_large_unlabelled_set_waits_on_disk(
    photos: Path, model: CosineModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features beyond a limit are in a file, and few decoded pictures wait for the network."""
    files = sorted((photos / "pile").iterdir())
    monkeypatch.setattr(embedding, "IN_MEMORY", 1000)
    monkeypatch.setattr(embedding, "AHEAD", 8)
    waiting: list[int] = []
    embed = Embedder(model, keep=False)
    decode, network = embed._decode, embed._compute

    def counted(photo: "Path") -> object:
        waiting.append(1)
        return decode(photo)

    most = 0

    def emptied(keys: "list[bytes]", pixels: "np.ndarray") -> object:
        nonlocal most
        most = max(most, len(waiting))
        del waiting[: len(pixels)]
        return network(keys, pixels)

    monkeypatch.setattr(embed, "_decode", counted)
    monkeypatch.setattr(embed, "_compute", emptied)
    done = embed(files)
    assert isinstance(done.features, np.memmap)
    assert most <= runtime.BATCH + 8 + 1
    plain = Embedder(model, keep=False)(files[:3]).features
    np.testing.assert_allclose(done.features[:3], plain, rtol=1e-5, atol=1e-6)


def blobs(centres: torch.Tensor, each: int, spread: float, seed: int) -> "np.ndarray":
    noise = torch.randn(len(centres), each, centres.shape[1], generator=_generator(seed))
    return (centres[:, None] + spread * noise).flatten(0, 1).numpy()


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_an_unlabelled_set_that_does_harm_is_not_used() -> None:
    """Features: what U takes for the new class drags it away from its own examples."""
    centres = torch.eye(6)
    x, y = blobs(centres[:4], 30, 0.02, 0), np.repeat(["a", "b", "c", "d"], 30)
    base = FewgraftClassifier(steps=10, alpha=1.0).fit(x, y)
    new = blobs(0.75 * centres[4:5] + 0.66 * centres[:1], 4, 0.02, 1)
    away = blobs(0.6 * centres[4:5] + 0.8 * centres[5:], 300, 0.02, 2)
    learnt, plain = base.learn(new, ["e"] * 4, away), base.learn(new, ["e"] * 4)
    outcome = learnt.outcome_
    assert outcome.left_out_without_unlabelled.accuracy_after == 1
    assert not outcome.used_unlabelled
    assert "fewer of the new photos" in outcome.why_not
    probe = blobs(centres, 5, 0.1, 3)
    np.testing.assert_allclose(learnt.predict_proba(probe), plain.predict_proba(probe))


def test_killed_while_learning(photos: Path, tmp_path: Path) -> None:
    """Whenever it comes, the new classifier is there whole or not at all."""
    command = [sys.executable, "-m", "fewgraft", "learn", "icons", "--new", str(photos / "new")]
    command += ["--unlabelled", str(photos / "pile"), "--out"]
    for number, delay in enumerate((1.5, 2.5, 3.0)):
        out = tmp_path / f"v{number}"
        process = subprocess.Popen([*command, str(out)], stdout=subprocess.DEVNULL)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if out.exists():
            assert load_model(out).card.classes[-3:] == NEW
    subprocess.run([*command, str(tmp_path / "v0b")], check=True, capture_output=True)
    assert load_model(tmp_path / "v0b").card.classes[-3:] == NEW


def test_a_class_for_each_photo_on_request(photos: Path, run: Run, model: CosineModel) -> None:
    """Noise fits no class, and old pictures do: without "unknown" the best one is the answer."""
    assert model.card.unknown is None, "the lesson sets the limit"
    new = {name: sorted((photos / "new" / name).iterdir()) for name in NEW}
    check = {p.name: sorted(p.iterdir()) for p in (photos / "old val").iterdir()}
    embed = Embedder(learn(model, new, check=check).model)
    asked = [np.full((32, 32), shade, np.uint8) for shade in range(0, 256, 5)]
    usual, named = list(predict(embed, asked)), list(predict(embed, asked, unknown=False))
    assert "unknown" in {answer.label for answer in usual}
    assert [answer.label for answer in named] == [answer.best for answer in usual]


def test_settings_of_a_lesson(photos: Path, model: CosineModel) -> None:
    new = {name: sorted((photos / "new" / name).iterdir()) for name in NEW}
    single = learn(model, {"sun": new["sun"][:1]}, settings=LearnSettings(unknown=False))
    assert single.model.card.unknown is None
    assert not single.left_out.after
    assert "cannot be judged" in single.notes[0]
    with pytest.raises(FewgraftError, match="nothing to learn"):
        learn(model, {})


@parametrize_with_checks([FewgraftClassifier()])  # type: ignore[untyped-decorator]
def test_scikit_learns_own_checks(
    estimator: FewgraftClassifier, check: Callable[..., None]
) -> None:
    check(estimator)


def test_the_estimator_on_photos(photos: Path, tmp_path: Path) -> None:
    backbone = str(Path(fewgraft.__file__).parent / "zoo_models" / "icons" / "algorithm-2")
    files = sorted((photos / "old").glob("*/*"))
    names = [file.parent.name for file in files]
    v1 = fewgraft.FewgraftClassifier(backbone).fit(list(map(str, files)), names)
    new = sorted((photos / "new").glob("*/*"))
    v2 = v1.learn(new, [f.parent.name for f in new], unlabelled=list((photos / "pile").iterdir()))
    assert list(v2.classes_) == [*sorted(set(names)), *NEW]
    assert list(v1.classes_) == sorted(set(names))
    inbox = sorted((photos / "inbox").iterdir())
    probabilities = v2.predict_proba([Image.open(file) for file in inbox])
    np.testing.assert_allclose(probabilities.sum(1), 1)
    v2.save(tmp_path / "v2")
    assert "robot" in (tmp_path / "v2" / "report.html").read_text()
    loaded = fewgraft.load(tmp_path / "v2")
    np.testing.assert_array_equal(loaded.predict(inbox), v2.predict(inbox))
    with pytest.raises(FewgraftError, match="cannot be read"):
        v2.predict([tmp_path / "v2" / "model.json"])
    v3 = loaded.learn(new[:2], ["again", "again"])
    assert list(v3.classes_) == [*v2.classes_, "again"]


def test_a_module_of_ones_own(photos: Path, tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.AvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(64, 48))
    card = ModelCard(
        backbone="custom", width=48, classes=(), size=32, channels=1, mean=(0.5,), std=(0.5,)
    )
    files = sorted((photos / "old").glob("*/*"))
    names = [file.parent.name for file in files]
    v1 = FewgraftClassifier(CosineModel(card, module), keep=False).fit(files, names)
    assert v1.score(files, names) > 0.5
    new = sorted((photos / "new").glob("*/*"))
    v2 = v1.learn(new, [file.parent.name for file in new])
    v2.save(tmp_path / "v2")
    with pytest.raises(FewgraftError, match="a backbone of its own"):
        fewgraft.load(tmp_path / "v2")
    loaded = fewgraft.load(tmp_path / "v2", backbone=module)
    np.testing.assert_allclose(loaded.predict_proba(files), v2.predict_proba(files), atol=1e-5)
    with pytest.raises(FewgraftError, match="what pictures it wants"):
        FewgraftClassifier(module).fit(files, names)


def test_the_estimator_on_features(tmp_path: Path) -> None:
    centres = torch.eye(5)
    x, y = blobs(centres[:3], 20, 0.1, 0), np.repeat([10, 20, 30], 20)
    fitted = FewgraftClassifier().fit(x, y)
    learnt = fitted.learn(blobs(centres[3:], 2, 0.1, 1), [7, 7, 5, 5], blobs(centres, 9, 0.1, 2))
    assert list(learnt.classes_) == [10, 20, 30, 5, 7]
    answers = learnt.predict(blobs(centres, 10, 0.1, 3))
    assert (answers == np.repeat([10, 20, 30, 7, 5], 10)).mean() > 0.95
    learnt.save(tmp_path / "v2")
    assert fewgraft.load(tmp_path / "v2").predict(blobs(centres[4:], 1, 0.1, 4)).tolist() == ["5"]
    with pytest.raises(ValueError, match="of one kind"):
        fitted.learn(x[:1], ["text"])


def test_a_network_that_moves(photos: Path, model: CosineModel) -> None:
    new = {name: sorted((photos / "new" / name).iterdir()) for name in NEW}
    unlabelled = sorted((photos / "pile").iterdir())
    check = {p.name: sorted(p.iterdir()) for p in (photos / "old val").iterdir()}
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    outcome = learn_adapted(
        model, new, unlabelled, check, config=DistilledAdaptation(steps=2), keep=False
    )
    moved = [
        name
        for name, tensor in outcome.model.backbone.state_dict().items()
        if not torch.equal(tensor, start[f"backbone.{name}"])
    ]
    assert moved
    assert all(name.startswith("block3") for name in moved), "the last block, and nothing else"
    assert all(torch.equal(t, start[n]) for n, t in model.state_dict().items())
    assert outcome.before is model
    assert outcome.model.card.classes[-3:] == NEW
    assert "optimistic" in outcome.notes[-1]
    assert outcome.check
    assert outcome.check.accuracy_before - outcome.check.accuracy_after <= 0.02 + 1e-6
    still = learn_adapted(model, new, (), keep=False)
    assert "nothing was adapted" in still.notes[-1]


def test_what_cannot_move_says_so(model: CosineModel) -> None:
    card = model.card.model_copy(update={"backbone": "custom"})
    with pytest.raises(FewgraftError, match="cannot be adapted"):
        learn_adapted(CosineModel(card, torch.nn.Flatten()), {}, ())


def test_a_head_that_one_has(photos: Path, model: CosineModel, tmp_path: Path, run: Run) -> None:
    """The shipped model in two parts, put together again, answers as before."""
    save_file({"fc.weight": 3 * model.weight.detach()}, tmp_path / "head.safetensors")
    (tmp_path / "names.txt").write_text("\n".join(model.card.classes))
    backbone = Path(fewgraft.__file__).parent / "zoo_models" / "icons" / "algorithm-2"
    done = run(
        *("base", photos / "old val", "--backbone", backbone, "--head", "head.safetensors"),
        *("--names", "names.txt", "--out", "v1"),
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(model.card.classes)} classes from head.safetensors" in done.stdout
    imported = load_model(tmp_path / "v1")
    files = sorted((photos / "old val").glob("*/*"))
    answers = [p.best for p in predict(Embedder(imported), files)]
    assert answers == [p.best for p in predict(Embedder(model), files)]
    assert 5 < imported.gamma.item() < 40
    assert imported.card.unknown is not None
    assert run("base", "--head", "head.safetensors", "--out", "v9").returncode == 2


def test_export_by_command(photos: Path, tmp_path: Path, run: Run) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert run("export", "icons", "model.onnx").returncode == 0
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
    files = sorted((photos / "inbox").iterdir())
    pixels = np.stack([read_picture(file, 32, 1) for file in files])
    logits = session.run(["logits"], {"pixels": pixels})[0]
    expected = [p.best for p in predict(Embedder(open_classifier("icons")), files)]
    assert [names[best] for best in logits.argmax(-1)] == expected
