"""`fewgraft.evaluate` is the benchmark in one call, for names, files, objects and plain arrays."""

import dataclasses
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fewgraft
from fewgraft import evaluation
from fewgraft.bench.results import Results
from fewgraft.bench.rows import run
from fewgraft.bench.runner import Bench, jobs
from fewgraft.data.parts import PARTS, Part
from fewgraft.data.store import ImageStore
from fewgraft.episodes import EpisodeSettings
from fewgraft.errors import FewgraftError
from fewgraft.feature_set import FeatureSet
from fewgraft.methods.base import Method, NovelWeights, Task
from fewgraft.methods.prototype_refinement import PrototypeRefinement
from fewgraft.metrics import Scores
from fewgraft.model import CosineModel, embed_all, save_model
from fewgraft.prototypes import prototypes
from fewgraft.split_features import SplitFeatures
from fewgraft.training.recipe import load_recipe
from fewgraft.zoo import models_folder, shipped_model

FEW = 12
pytestmark = pytest.mark.usefixtures("_shared_home")


def same(a: Scores, b: Scores) -> bool:
    names = [field.name for field in dataclasses.fields(Scores)]
    return all(
        torch.equal(getattr(a, n).nan_to_num(-1), getattr(b, n).nan_to_num(-1)) for n in names
    )


@pytest.mark.parametrize(
    ("method", "setting", "shots", "episodes"),
    [
        ("proposed-without-adaptation", "s2i", 1, FEW),
        ("+pr", "s2i-transductive", 5, FEW),
        ("meta-inc-baseline", "incremental", 5, FEW),
        ("bd-cspn", "semi-fsl", 1, FEW),
        pytest.param("+fixmatch", "s2i", 1, 2, marks=pytest.mark.slow),
    ],
)
def test_it_gives_the_bits_of_the_benchmark(
    method: str, setting: str, shots: int, episodes: int, tmp_path: Path
) -> None:
    wanted = jobs(
        load_recipe("icons"),
        models_folder("icons"),
        [method],
        [setting],
        [shots],
        episodes,
        "val",
        seed=3,
    )
    results = Results(tmp_path)
    ((row, _),) = run(wanted, results, Bench())
    found = fewgraft.evaluate(
        method, "icons", setting, shots, episodes, split="val", seed=3, device="cpu"
    )
    assert same(found.scores, results.scores(row))
    assert found.to_dict()["hyper"] == row.hyper
    assert found.title == row.title
    assert found.summary()["acc"] == row.interval("acc")


@dataclass(frozen=True)
class Towards(Method):
    """A method of someone else's."""

    share: float = 0.5

    def fit(self, task: Task) -> NovelWeights:
        novel = prototypes(task.support, task.labels, task.ways)
        return NovelWeights(novel + self.share * task.unlabelled.mean(1, keepdim=True), task.gamma)


FILE = """
from fewgraft.methods.base import MethodSpec
from fewgraft.methods.prototype_refinement import PrototypeRefinement

METHODS = (MethodSpec("mine", "Mine", PrototypeRefinement(steps=STEPS), "algorithm-2", rank=20),)
"""


def test_objects_and_files_are_used_as_they_are(icons: ImageStore, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE.replace("STEPS", "2"))
    by_object, by_file = (
        fewgraft.evaluate(m, icons, episodes=FEW) for m in (PrototypeRefinement(steps=2), path)
    )
    assert same(by_object.scores, by_file.scores)
    assert (by_object.title, by_file.title) == ("PrototypeRefinement(steps=2)", "Mine")
    named = fewgraft.evaluate("proposed-without-adaptation", icons, episodes=FEW)
    assert named.method == PrototypeRefinement(temperature=2.0), "tuned on validation episodes"
    assert not same(named.scores, by_object.scores)
    assert fewgraft.evaluate(Towards(0.1), icons, episodes=FEW).title == "Towards(share=0.1)"


def test_a_file_that_was_edited_is_read_again(icons: ImageStore, tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    for steps in (1, 4):
        path.write_text(FILE.replace("STEPS", str(steps)) + "#" * steps)
        found = fewgraft.evaluate(path, icons, episodes=2)
        assert found.method == PrototypeRefinement(steps=steps)


def test_models_come_by_stage_by_folder_or_as_they_are(icons: ImageStore, tmp_path: Path) -> None:
    def scores(**given: Any) -> Scores:
        return fewgraft.evaluate(PrototypeRefinement(), icons, episodes=FEW, **given).scores

    first, second = (shipped_model("icons", f"algorithm-{number}") for number in (1, 2))
    assert same(scores(), scores(model=second))
    assert same(scores(), scores(model=models_folder("icons")))
    assert not same(scores(), scores(model=first))
    save_model(first, tmp_path / "one")
    assert same(scores(model=first), scores(model=str(tmp_path / "one")))
    other = CosineModel(first.card.model_copy(update={"classes": ("a", "b")}), first.backbone)
    with pytest.raises(FewgraftError, match="other base classes"):
        scores(model=other)
    with pytest.raises(FewgraftError, match="no model 'algorithm-2'"):
        scores(model=tmp_path)


def test_settings_of_ones_own(icons: ImageStore) -> None:
    own = EpisodeSettings.paper("s2i", 2, ways=3, queries=4, split="val", seed=7)
    found = fewgraft.evaluate("+pr", icons, own, episodes=FEW)
    assert found.settings == own
    assert "3-way" in str(found)
    assert "s2i, 2-shot" in str(found)
    with pytest.raises(FewgraftError, match="shots is 5, but the settings say 2"):
        fewgraft.evaluate("+pr", icons, own, shots=5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "+prr"}, r"Did you mean '\+pr'"),
        ({"method": PrototypeRefinement}, "an object of a Method"),
        ({"method": "bd-cspn"}, "does not tell base and novel classes apart"),
        ({"method": "none.py"}, "there is no file none.py"),
        ({"data": "icon"}, "Did you mean 'icons'"),
        ({"setting": "s3i"}, "Did you mean 's2i'"),
        ({"shots": 0}, "shots ≥ 1"),
        ({"shots": 10_000}, "10000 support"),
        ({"episodes": 1}, "at least 2 episodes"),
        ({"split": "train"}, "not on train"),
        ({"device": "cuda:99"}, "there is no device 'cuda:99'"),
        ({"device": "gpu"}, "there is no device 'gpu'"),
        ({"device": "meta"}, "there is no device 'meta'"),
        ({"model": "nowhere"}, "nowhere has no model"),
    ],
)
def test_what_cannot_be_evaluated_is_said(given: dict[str, Any], message: str) -> None:
    given = {"method": "+pr", "episodes": FEW, **given}
    with pytest.raises(FewgraftError, match=message):
        fewgraft.evaluate(**given)


class Recorded(SplitFeatures):
    """Says where the model was."""

    devices: ClassVar[list[torch.device]] = []

    def __init__(
        self,
        model: CosineModel,
        store: ImageStore,
        split: str,
        *,
        models: Path | None,
        views: int,
    ) -> None:
        self.devices.append(model.weight.device)
        super().__init__(
            shipped_model("icons", "algorithm-2"), store, split, models=models, views=views
        )


def test_the_device_reaches_model_and_features(
    icons: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device "meta" has no values, but it is not the CPU."""
    meta, model = torch.device("meta"), shipped_model("icons", "algorithm-2")
    monkeypatch.setattr(evaluation, "choose_device", lambda _: meta)
    monkeypatch.setattr(evaluation, "SplitFeatures", Recorded)
    fewgraft.evaluate("+pr", icons, episodes=2, model=model, device="meta")
    assert Recorded.devices == [meta]
    assert model.weight.device.type == "cpu", "the caller's own stays where it is"
    features = FeatureSet(**arrays()).of_split("test", meta)
    assert features.bank.features.device == features.weights.device == meta


def test_progress_is_shown(icons: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def track(items: list[range], description: str, total: int) -> Iterator[range]:
        seen.append((description, total))
        yield from items

    monkeypatch.setattr(evaluation, "track", track)
    fewgraft.evaluate("+pr", icons, episodes=FEW)
    assert seen == [("Meta-Inc-Baseline + PR", 2)]


# --- what it returns ---


def test_a_summary_and_a_table(icons: ImageStore) -> None:
    found = fewgraft.evaluate("+pr", icons, episodes=FEW)
    acc = found.scores.acc
    half = 1.96 * acc.std().item() / math.sqrt(FEW)
    assert found.summary()["acc"].mean == pytest.approx(acc.mean().item())
    assert found.summary()["acc"].half == pytest.approx(half)
    head, line, note = found.table().splitlines()
    assert head.split() == ["Method", "Setting", "Acc", "Δ", "b/all", "n/all", "b/b", "n/n", "H"]
    assert f"{100 * acc.mean().item():.2f} ± {100 * half:.2f}" in line
    assert f"{100 * found.scores.delta.mean().item():.2f}" in line
    assert note.startswith("12 test episodes of icons, 5-way")
    assert str(found) == found.table()
    assert "tensor" not in repr(found)


def test_several_in_one_table(icons: ImageStore) -> None:
    several = [
        fewgraft.evaluate("+pr", icons, episodes=FEW),
        fewgraft.evaluate("bd-cspn", icons, "semi-fsl", 5, episodes=FEW),
        fewgraft.evaluate("+pr", icons, episodes=3),
    ]
    text = several[0].table(*several[1:])
    assert [len(line.split("  ")[0]) > 0 for line in text.splitlines()] == [True] * 6
    assert re.search(r"BD-CSPN +semi-fsl, 5-shot +\d\d\.\d\d ± \d\.\d\d +– ", text)
    assert text.count("episodes of icons") == 2, "each kind of episodes is said once"


def test_a_dictionary_that_json_can_hold(icons: ImageStore) -> None:
    found = fewgraft.evaluate("bd-cspn", icons, "fsl", episodes=FEW)
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert read == found.to_dict()
    assert read["metrics"]["delta"] == {"mean": None, "half": None}
    assert read["metrics"]["acc"]["mean"] == found.summary()["acc"].mean
    assert EpisodeSettings(**read["settings"]) == found.settings


def test_a_paired_difference(icons: ImageStore) -> None:
    a = fewgraft.evaluate("proposed-without-adaptation", icons, episodes=FEW)
    b = fewgraft.evaluate("meta-inc-baseline", icons, "incremental", 5, episodes=FEW)
    found = a.compare(b)
    by_hand = a.scores.acc - b.scores.acc
    acc = found.summary()["acc"]
    assert acc.difference.mean == pytest.approx(by_hand.mean().item())
    assert acc.difference.half == pytest.approx(1.96 * by_hand.std().item() / math.sqrt(FEW))
    assert acc.wins == (by_hand > 0).sum().item()
    assert acc.losses == (by_hand < 0).sum().item()
    assert f"{100 * by_hand.mean().item():.2f} ±" in str(found)
    assert "B: Meta-Inc-Baseline (incremental, 5-shot)" in str(found)
    assert b.compare(a).summary()["acc"].difference.mean == -acc.difference.mean


@pytest.mark.parametrize("other", [{"seed": 1}, {"split": "val"}, {"episodes": 9}])
def test_other_queries_are_not_compared(other: dict[str, Any], icons: ImageStore) -> None:
    a = fewgraft.evaluate("+pr", icons, episodes=FEW)
    b = fewgraft.evaluate("+pr", icons, **{"episodes": FEW} | other)
    with pytest.raises(FewgraftError, match="same queries"):
        a.compare(b)
    without_base = fewgraft.evaluate("+pr", icons, "semi-fsl", episodes=FEW)
    with pytest.raises(FewgraftError, match="same queries"):
        a.compare(without_base)


# --- plain arrays ---

Arrays = dict[str, Any]


def arrays(d: int = 16, per_class: int = 70) -> Arrays:
    """Ten base and eight novel classes around centres of their own."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(18), per_class)
    place = np.arange(len(labels)) % per_class
    features = rng.normal(size=(18, d))[labels] + rng.normal(size=(len(labels), d))
    base = np.where(place < 20, "base/train", "base/test")
    parts = np.where(labels < 10, base, "novel/test")
    return {"features": features, "labels": labels, "parts": parts}


@pytest.mark.numerical
def test_arrays_give_the_numbers_of_the_store(icons: ImageStore) -> None:
    model = shipped_model("icons", "algorithm-2")
    chosen = np.flatnonzero(np.isin(icons.parts, [PARTS.index(p) for p in PARTS if "test" in p]))
    data = FeatureSet(
        7 * embed_all(model, icons.pictures[chosen]),
        icons.labels[chosen],
        icons.parts[chosen],
        weights=model.weight,
        gamma=model.gamma.item(),
    )
    method = PrototypeRefinement(steps=2)
    for setting in ("s2i", "transductive-fsl"):
        whole = fewgraft.evaluate(method, icons, setting, 5, episodes=FEW)
        assert same(whole.scores, fewgraft.evaluate(method, data, setting, 5, FEW).scores)


@pytest.mark.numerical
def test_w_b_is_the_mean_direction_of_base_train() -> None:
    given = arrays()
    data = FeatureSet(**given)
    unit = given["features"] / np.linalg.norm(given["features"], axis=1, keepdims=True)
    means = [
        unit[(given["labels"] == k) & (given["parts"] == "base/train")].mean(0) for k in range(10)
    ]
    wanted = np.stack([m / np.linalg.norm(m) for m in means])
    assert np.allclose(data.weights.numpy(), wanted, atol=1e-6)
    assert data.gamma == 20


def test_plain_arrays_are_data() -> None:
    given = arrays()
    plain = fewgraft.evaluate("+pr", (given["features"], given["labels"], given["parts"]))
    assert same(plain.scores, fewgraft.evaluate("+pr", FeatureSet(**given)).scores)
    with pytest.raises(FewgraftError, match=r"data is a list.*\n.*features, labels, parts"):
        fewgraft.evaluate("+pr", [given["features"]])  # type: ignore[arg-type]


@pytest.mark.numerical
def test_arrays_may_come_in_any_guise() -> None:
    given = arrays()
    one = fewgraft.evaluate("+pr", FeatureSet(**given), episodes=FEW)
    assert one.summary()["acc"].mean > 0.5
    lengths = np.random.default_rng(1).uniform(0.1, 9, size=(len(given["labels"]), 1))
    names = np.array([f"class {k:02}" for k in given["labels"]])
    guises: list[Arrays] = [
        {"features": torch.tensor(given["features"], requires_grad=True)},
        {"features": (given["features"] * lengths).tolist()},
        {"features": given["features"] * 1e25},
        {"features": given["features"] * 1e-25},
        {"labels": torch.from_numpy(given["labels"])},
        {"labels": given["labels"] - 30},
        {"labels": names},
        {"labels": names.astype(object), "parts": list(given["parts"])},
        {"features": given["features"][::-1].copy()[::-1]},
        {"features": given["features"].astype(">f8")},
        {"parts": [PARTS.index(Part(part)) for part in given["parts"]]},
        {"parts": [Part(part) for part in given["parts"]]},
    ]
    read_only = given["features"].astype(np.float32)
    read_only.setflags(write=False)
    guises.append({"features": read_only})
    for guise in guises:
        other = fewgraft.evaluate("+pr", FeatureSet(**given | guise), episodes=FEW)
        assert same(one.scores, other.scores), guise
        assert other.compare(one).summary()["acc"].ties == FEW


@pytest.mark.numerical
def test_the_order_of_base_and_novel_labels_does_not_matter() -> None:
    given = arrays()
    turned = given["labels"].max() - given["labels"]  # base classes have the largest labels
    data = FeatureSet(**given | {"labels": turned})
    assert data.n_base == 10
    assert data.classes[:10] == tuple(map(str, range(8, 18)))
    a, b = (fewgraft.evaluate("+pr", d, episodes=60) for d in (data, FeatureSet(**given)))
    assert a.summary()["b_b"].mean == pytest.approx(b.summary()["b_b"].mean, abs=0.03)


def with_nan(features: NDArray[np.float64]) -> NDArray[np.float64]:
    features = features.copy()
    features[7, 3] = np.nan
    return features


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {"features": with_nan(a["features"])}, "NaN or infinity, first in row 7"),
        (lambda a: {"features": a["features"] * 1e300}, "NaN or infinity"),
        (lambda a: {"features": a["features"][:, 0]}, r"features are \[1260\], not \[n, d\]"),
        (lambda a: {"features": a["features"][:, :0]}, r"features are \[1260, 0\], not \[n, d\]"),
        (lambda a: {"features": a["features"] * 1j}, "complex128, not an array of real numbers"),
        (lambda a: {"features": torch.ones(2, 2) * 1j}, "complex64, not an array of real numbers"),
        (lambda a: {"features": [["a"]]}, "features are <U1, not an array of real numbers"),
        (lambda a: {"features": [[1.0], [1.0, 2.0]]}, "features are not an array of numbers"),
        (lambda a: {"labels": a["labels"][:-1]}, r"labels are \[1259\], not \[1260\]"),
        (lambda a: {"labels": a["labels"] + 0.5}, "not whole numbers or names"),
        (lambda a: {"labels": [[1], [1, 2]]}, "labels are not an array"),
        (lambda a: {"parts": a["parts"][:5]}, r"parts are \[5\]"),
        (
            lambda a: {"parts": np.char.replace(a["parts"], "novel", "new")},
            "there is no part 'new/",
        ),
        (lambda a: {"parts": np.full(1260, 6)}, "there is no part '6'"),
        (lambda a: {"labels": a["labels"] % 9}, "is in novel/test and in a base part"),
        (lambda a: {"weights": np.ones((9, 16))}, r"weights are \[9, 16\], not \[10, 16\]"),
        (lambda a: {"weights": np.full((10, 16), np.inf)}, "weights hold NaN"),
        (lambda a: {"gamma": 0.0}, "gamma must be above 0"),
        (lambda a: {"gamma": math.nan}, "gamma must be above 0"),
        (
            lambda a: {"parts": np.where(a["labels"] == 4, "base/test", a["parts"])},
            "base class '4' has no pictures in base/train",
        ),
    ],
)
def test_arrays_that_do_not_fit(change: Any, message: str) -> None:
    given = arrays()
    with pytest.raises(FewgraftError, match=message):
        FeatureSet(**given | change(given))


def test_what_arrays_cannot_do() -> None:
    data = FeatureSet(**arrays())
    with pytest.raises(FewgraftError, match="moves the network"):
        fewgraft.evaluate("+fixmatch", data, episodes=FEW)
    with pytest.raises(FewgraftError, match="leave model out"):
        fewgraft.evaluate("+pr", data, model="runs/icons")
    with pytest.raises(FewgraftError, match="novel/val has 0 classes"):
        fewgraft.evaluate("+pr", data, split="val")
    small = FeatureSet(**arrays(per_class=40))
    with pytest.raises(FewgraftError, match="class '10' has 40 pictures in novel/test; 46 are"):
        fewgraft.evaluate("+pr", small)
    few = EpisodeSettings.paper("s2i", queries=5, unlabelled=60)
    assert len(fewgraft.evaluate("+pr", small, few, episodes=FEW)) == FEW


def test_only_base_train_may_be_missing() -> None:
    given = arrays()
    kept = given["parts"] != "base/train"
    test_only = {name: value[kept] for name, value in given.items()}
    weights = FeatureSet(**given).weights
    a = fewgraft.evaluate("+pr", FeatureSet(**test_only, weights=weights), episodes=FEW)
    assert a.summary()["acc"].mean > 0.5
