"""Fixed views and mid-level features: what they are of, and that banks tell them apart."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import fewgraft
from fewgraft.augment import Augmentation
from fewgraft.bench.chosen_rows import Choice, refuse_several_runs
from fewgraft.bench.runner import Bench, Job, job_of, jobs
from fewgraft.data.store import ImageStore
from fewgraft.errors import FewgraftError
from fewgraft.feature_bank import embed_mid, feature_bank, has_mid, mid_bank, model_views
from fewgraft.metrics import Scores
from fewgraft.model import CosineModel, embed_all, new_model
from fewgraft.prototypes import directions
from fewgraft.split_features import SplitFeatures
from fewgraft.training.recipe import load_recipe
from fewgraft.views import FixedView, fixed_views
from fewgraft.zoo import models_folder, shipped_model


def pixels() -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 8, 8, 3), generator=rng, dtype=torch.uint8)


def test_a_shift_moves_rows_and_columns_and_mirrors_the_border() -> None:
    whole = pixels()
    seen = FixedView(down=2, right=-1)(whole)
    for row in range(8):
        for column in range(8):
            y, x = row + 2, abs(column - 1)
            y = 14 - y if y > 7 else y
            assert torch.equal(seen[:, row, column], whole[:, y, x])


def test_a_turn_is_about_the_middle_and_back_again() -> None:
    disc = torch.zeros(1, 33, 33, 1, dtype=torch.uint8)
    disc[0, 16, 4:29] = 255  # a line across
    turned = FixedView(turn=90.0)(disc)
    assert torch.equal(turned, disc.transpose(1, 2))
    slightly = FixedView(turn=8.0)(disc).float()
    assert slightly[0, :16, 16:].sum() * slightly[0, 17:, :16].sum() > 0 or (
        slightly[0, :16, :16].sum() * slightly[0, 17:, 17:].sum() > 0
    )
    assert torch.equal(FixedView()(disc), disc)


def test_views_go_half_as_far_as_training_did() -> None:
    shifted = fixed_views(Augmentation(crop=4, mirror=True), 3)
    assert shifted == (FixedView(), FixedView(-2, -2), FixedView(2, 2))
    assert len(set(fixed_views(Augmentation(crop=4), 5))) == 5
    turned = fixed_views(Augmentation(rotate=15, shift=0.1), 3)
    assert turned == (FixedView(), FixedView(turn=-7.5), FixedView(turn=7.5))
    assert fixed_views(Augmentation(), 1) == (FixedView(),)
    with pytest.raises(FewgraftError, match="neither shifted nor turned"):
        fixed_views(Augmentation(mirror=True), 3)
    with pytest.raises(FewgraftError, match="no 2 views"):
        fixed_views(Augmentation(crop=4), 2)


def test_features_are_means_over_views(icons: ImageStore, tmp_path: Path) -> None:
    model, pictures = shipped_model("icons", "algorithm-2"), np.arange(5)
    found = feature_bank(model, icons, pictures, tmp_path, views=3).features
    whole = torch.from_numpy(np.array(icons.pictures[pictures]))
    each = [embed_all(model, view(whole).numpy()) for view in model_views(model, 3)]
    torch.testing.assert_close(found, directions(sum(each[1:], each[0])), rtol=1e-4, atol=1e-5)
    plain = feature_bank(model, icons, pictures, tmp_path).features
    assert not torch.allclose(found, plain, atol=1e-3)
    assert len(list(tmp_path.iterdir())) == 2, "a bank of its own"


def test_mid_level_features_are_means_over_places(icons: ImageStore, tmp_path: Path) -> None:
    model, pictures = shipped_model("icons", "algorithm-2"), np.arange(5)
    bank = mid_bank(model, icons, pictures, tmp_path)
    assert bank is not None
    prepared = model.prepare(torch.from_numpy(np.array(icons.pictures[pictures])))
    with torch.no_grad():
        for name, block in list(model.backbone.named_children())[:-2]:
            assert name != "average"
            prepared = block(prepared)
    for row, activations in zip(bank.features, prepared, strict=True):
        mean = torch.stack([channel.mean() for channel in activations])
        torch.testing.assert_close(row, mean / mean.norm(), rtol=1e-4, atol=1e-5)


def test_mirrored_models_average_the_mid_level_too() -> None:
    settings = ("resnet12-tiny", ("a",), 16, 3, (0.5,) * 3, (0.2,) * 3)
    plain, both = (new_model(*settings, mirrored=m).eval() for m in (False, True))
    seen = pixels().repeat_interleave(2, 1).repeat_interleave(2, 2).numpy()
    expected = (embed_mid(plain, seen) + embed_mid(plain, np.flip(seen, 2))) / 2
    torch.testing.assert_close(embed_mid(both, seen), expected, rtol=1e-4, atol=1e-5)


def test_a_network_without_blocks_has_no_mid_level(icons: ImageStore, tmp_path: Path) -> None:
    card = shipped_model("icons", "algorithm-2").card
    model = CosineModel(card, torch.nn.Identity())
    assert not has_mid(model)
    assert mid_bank(model, icons, np.arange(3), tmp_path) is None


def wanted(views: int, method: str = "+pr") -> Job:
    recipe, folder = load_recipe("icons"), models_folder("icons")
    [job] = jobs(recipe, folder, [method], ["s2i"], [1], 10, "val", views=views)
    return job


def test_views_are_part_of_a_rows_identity() -> None:
    bench = Bench()
    one, three = wanted(1), wanted(3)
    assert "views" not in bench.identity(one), "rows of before keep their names"
    assert bench.identity(three)["views"] == 3
    assert [bench.split_features(job).views for job in (one, three)] == [1, 3]
    scores = Scores(*torch.rand(len(dataclasses.fields(Scores)), 10).double())
    rows = [bench.row(job, scores, 1.0, 1) for job in (one, three)]
    assert [job_of(row).views for row in rows] == [1, 3]
    assert rows[0].id != rows[1].id
    with pytest.raises(FewgraftError, match="different numbers of views: 1, 3"):
        refuse_several_runs(rows)
    assert [Choice(views=3).takes(row) for row in rows] == [False, True]


def test_methods_that_look_at_pictures_take_no_views(icons: ImageStore) -> None:
    with pytest.raises(FewgraftError, match="takes them as they are"):
        wanted(3, "proposed")
    features = SplitFeatures(shipped_model("icons", "algorithm-2"), icons, "val", views=3)
    with pytest.raises(FewgraftError, match="takes them as they are"):
        _ = features.network
    data = (np.eye(4), np.arange(4), ["base/train", "base/train", "novel/test", "novel/test"])
    with pytest.raises(FewgraftError, match="leave views out"):
        fewgraft.evaluate("+pr", data=data, episodes=2, views=3)
