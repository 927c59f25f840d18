"""What people bring: copies, photos in two places, names that are nearly the same."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Pixels
from PIL import Image

import fewgraft
from fewgraft.app.features.embedding import Embedded, Embedder, Photo
from fewgraft.app.features.labelled import Labelled
from fewgraft.app.learning import hygiene
from fewgraft.app.learning.adapting import learn_adapted
from fewgraft.app.learning.hygiene import Material
from fewgraft.app.learning.learn import Outcome, learn
from fewgraft.app.learning.names import folded
from fewgraft.app.learning.saving import open_classifier
from fewgraft.cli import main
from fewgraft.data.parts import Part
from fewgraft.data.store import ImageStore
from fewgraft.methods.distilled_adaptation import DistilledAdaptation
from fewgraft.model import load_model

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def embed() -> Embedder:
    return Embedder(open_classifier("icons"), keep=False, tracker=lambda items, *_: items)


def pictures(icons: ImageStore, name: str, part: Part = Part.NOVEL_TEST) -> list[Pixels]:
    own = icons.by_class(part)[icons.classes.index(name)]
    return [np.array(icons.pictures[picture]) for picture in own[:40]]


@pytest.fixture(scope="module")
def robots(icons: ImageStore) -> list[Pixels]:
    return pictures(icons, "robot")


@pytest.fixture(scope="module")
def suns(icons: ImageStore) -> list[Pixels]:
    return pictures(icons, "sun")


@pytest.fixture(scope="module")
def bags(icons: ImageStore) -> list[Pixels]:
    return pictures(icons, "bag", Part.BASE_VAL)


def same(one: Outcome, other: Outcome) -> bool:
    states = (outcome.model.state_dict() for outcome in (one, other))
    first, second = states
    return one.model.card == other.model.card and all(
        torch.equal(tensor, second[name]) for name, tensor in first.items()
    )


def test_examples_are_taken_out_of_the_unlabelled_set(
    embed: Embedder, robots: list[Pixels]
) -> None:
    new = {"robot": robots[:3]}
    mixed = learn(embed.model, new, [*robots[1:9], robots[2], robots[0]], embedder=embed)
    apart = learn(embed.model, new, robots[3:9], embedder=embed)
    assert same(mixed, apart)
    assert mixed.unlabelled.photos == apart.unlabelled.photos
    assert mixed.notes == (
        "3 photos of the pile are examples as well: taken out of it",
        "1 photo of the pile is a copy of another: taken out of it",
    )
    assert apart.notes == ()


def test_two_copies_are_one_photo(embed: Embedder, robots: list[Pixels]) -> None:
    twice = learn(
        embed.model, {"robot": [*robots[:2], *robots[:2]]}, robots[3:] * 2, embedder=embed
    )
    once = learn(embed.model, {"robot": robots[:2]}, robots[3:], embedder=embed)
    assert same(twice, once)
    assert twice.model.card.examples == () or twice.model.card.examples[-1] == 2
    assert len(twice.left_out.photos) == 2
    assert twice.notes[0] == "2 new photos are copies of another: not counted again"
    assert "copies of others" in twice.notes[1]


def test_a_copy_alone_cannot_be_judged_by_itself(embed: Embedder, suns: list[Pixels]) -> None:
    """With two copies, leaving one out would leave the same photo in."""
    outcome = learn(embed.model, {"sun": [suns[0], suns[0]]}, embedder=embed)
    assert not outcome.left_out.after
    assert "cannot be judged" in outcome.notes[-1]


def test_what_judges_does_not_teach(
    embed: Embedder, robots: list[Pixels], bags: list[Pixels]
) -> None:
    new = {"robot": robots[:3]}
    check: dict[str, list[Photo]] = {"bag": [*bags[:6], robots[0], bags[0]]}
    mixed = learn(embed.model, new, [*robots[3:9], *bags[:2]], check, embedder=embed)
    apart = learn(embed.model, new, robots[3:9], {"bag": bags[:6]}, embedder=embed)
    assert same(mixed, apart)
    assert mixed.check
    assert len(mixed.check.photos) == 6
    assert mixed.notes[:4] == (
        "1 check photo is a copy of another: not counted again",
        "1 check photo is an example as well: left out of the check, which needs photos that "
        "were not learnt",
        "a photo is labelled 'bag' to check with and 'robot' to learn from",
        "2 photos of the pile are check photos as well: taken out of it",
    )


def test_rows_of_a_file_move_up_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, as memory may not hold them all."""
    monkeypatch.setattr(hygiene, "PART", 3)
    rows = np.arange(40, dtype=np.float32).reshape(20, 2)
    stored = np.memmap(tmp_path / "rows", np.float32, "w+", shape=rows.shape)
    stored[:] = rows
    keys = [bytes([number % 13]) for number in range(20)]
    nobody = Labelled((), (), (), torch.empty(0, 2))
    example = Labelled((rows[0],), ("a",), (bytes([4]),), torch.empty(1, 2))
    unlabelled = Embedded(stored, list(range(100, 120)), keys, {7: "broken"})
    found = Material.of(example, nobody, unlabelled).pictures
    expected = [number for number in range(13) if number != 4]
    assert found.kept == [100 + number for number in expected]
    assert isinstance(found.features, np.memmap)
    np.testing.assert_array_equal(found.features, rows[expected])
    assert found.failed == {7: "broken"}


def test_an_adapted_network_sees_each_photo_once(embed: Embedder, robots: list[Pixels]) -> None:
    quick = DistilledAdaptation(steps=1)
    new, clean = {"robot": robots[:2]}, robots[2:12]
    mixed = learn_adapted(embed.model, new, [*clean, *robots[:2]], config=quick, keep=False)
    apart = learn_adapted(embed.model, new, clean, config=quick, keep=False)
    assert same(mixed, apart)


NAMES = {
    "case": ("Bag", "bag"),
    "spaces": ("alarm ", "alarm"),
    "width": ("\uff42ag", "bag"),  # ｂ
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_beside_known_ones(kind: str, embed: Embedder, robots: list[Pixels]) -> None:
    name, known = NAMES[kind]
    outcome = learn(embed.model, {name: robots[:1]}, embedder=embed)
    assert f"'{known}' and '{name}' are different classes" in outcome.notes[0]
    again = learn(embed.model, {known: robots[:1]}, embedder=embed)
    assert "different classes" not in " ".join(again.notes)


def test_names_beside_each_other(embed: Embedder, robots: list[Pixels], suns: list[Pixels]) -> None:
    composed, apart = "caf\u00e9", "cafe\u0301"
    new = {composed: robots[:1], apart: suns[:1]}
    assert f"'{composed}' and '{apart}'" in learn(embed.model, new, embedder=embed).notes[0]
    assert folded("STRASSE  9") == folded("straße 9")
    assert folded("ant") != folded("aunt")


def test_a_class_called_unknown(embed: Embedder, robots: list[Pixels]) -> None:
    [note, *_] = learn(embed.model, {"Unknown": robots[:2]}, embedder=embed).notes
    assert "a class is called 'Unknown'" in note


def test_nothing_recognised(embed: Embedder, icons: ImageStore) -> None:
    """Photos of two old classes under one name: each is its own class's when left out."""
    new = {"odd": [pictures(icons, name, Part.BASE_VAL)[0] for name in ("bag", "alarm")]}
    outcome = learn(embed.model, new, embedder=embed)
    assert outcome.left_out.right_after == 0
    assert "of 2 new photos, none was recognised when left out (0 %)" in outcome.notes[-1]


def test_features_as_well() -> None:
    centres = np.eye(4, dtype=np.float32)
    rows = np.concatenate([c + 0.1 * np.eye(4, dtype=np.float32) for c in centres])
    names = np.repeat(["a", "b", "c", "d"], 4)
    v1 = fewgraft.FewgraftClassifier().fit(rows[:12], names[:12])
    v2 = v1.learn(rows[12:14], names[12:14], unlabelled=rows)
    assert "2 photos of the pile are examples as well" in v2.outcome_.notes[0]


def test_the_command_the_report_and_lesson_json_say_it(
    robots: list[Pixels],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for folder, numbers in {"new/Bag": range(3), "my pile": range(1, 9)}.items():
        (tmp_path / folder).mkdir(parents=True)
        for number in numbers:
            Image.fromarray(robots[number][:, :, 0]).save(tmp_path / folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    words = ["learn", "icons", "--new", "new", "--unlabelled", "my pile", "--out", "v2"]
    monkeypatch.setattr(sys, "argv", ["fewgraft", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    said = capsys.readouterr().out
    notes = json.loads((tmp_path / "v2" / "lesson.json").read_text())["notes"]
    report = (tmp_path / "v2" / "report.html").read_text()
    assert said.startswith("what the old classes lost was NOT measured: --check")
    for start in ("2 photos of the pile are examples", "'bag' and 'Bag' are different classes"):
        [note] = [note for note in notes if note.startswith(start)]
        assert f"note: {note}" in said
        assert note in report


def test_copies_among_base_photos_count_once(
    icons: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Under another name as well; the classifier is the one without them, and a line says so."""
    for name in icons.base_classes[:6]:
        (tmp_path / "old" / name).mkdir(parents=True)
        for number, pixels in enumerate(pictures(icons, name, Part.BASE_VAL)[:4]):
            Image.fromarray(pixels[:, :, 0]).save(tmp_path / "old" / name / f"{number}.png")
    backbone = Path(fewgraft.__file__).parent / "zoo_models" / "icons" / "pre-trained"

    def said(out: str) -> str:
        words = ["base", str(tmp_path / "old"), "--backbone", str(backbone)]
        monkeypatch.setattr(sys, "argv", ["fewgraft", *words, "--out", str(tmp_path / out)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().out

    assert "note" not in said("once")
    first = tmp_path / "old" / icons.base_classes[0] / "0.png"
    for number in range(2):
        first.with_name(f"renamed {number}.png").write_bytes(first.read_bytes())
    lines = said("twice")
    assert "note: 2 photos are copies of another: not counted again" in lines
    assert "6 classes from 24 photos" in lines
    once, twice = (load_model(tmp_path / name) for name in ("once", "twice"))
    assert once.card == twice.card
    torch.testing.assert_close(once.state_dict(), twice.state_dict())
