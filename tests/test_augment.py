"""Augmentation of whole batches against one picture at a time."""

import numpy as np
import pytest
import torch
from conftest import noise
from pydantic import ValidationError

from fewgraft.augment import Augmentation, augment, stronger

pytestmark = pytest.mark.numerical

PIXELS = torch.from_numpy(noise(0, 40, 12, 10, 3))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


ALL = Augmentation(
    crop=2, mirror=True, rotate=10, scale=0.1, shift=0.1, thicken=0.5, light=0.2, colour=0.3
)


def test_nothing_asked_for_is_nothing_done() -> None:
    assert torch.equal(augment(PIXELS, Augmentation(), rng()), PIXELS)


def test_the_same_generator_gives_the_same_pictures() -> None:
    before = PIXELS.clone()
    a, b, c = (augment(PIXELS, ALL, rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(PIXELS, before), "the input was changed"
    assert a.dtype == torch.uint8
    assert a.shape == PIXELS.shape


def test_crop_is_a_window_of_the_mirrored_border() -> None:
    """Each result must be one of the 25 windows of NumPy's reflected padding."""
    found = augment(PIXELS, Augmentation(crop=2), rng())
    offsets = set()
    for original, result in zip(PIXELS.numpy(), found.numpy(), strict=True):
        padded = np.pad(original, ((2, 2), (2, 2), (0, 0)), mode="reflect")
        windows = {(y, x): padded[y : y + 12, x : x + 10] for y in range(5) for x in range(5)}
        matches = [o for o, window in windows.items() if (window == result).all()]
        assert len(matches) == 1
        offsets.add(matches[0])
    assert len(offsets) > 12, "pictures move in their own ways"


def test_mirror_turns_about_half() -> None:
    found = augment(PIXELS, Augmentation(mirror=True), rng())
    turned = [bool((r == o.flip(1)).all()) for o, r in zip(PIXELS, found, strict=True)]
    same = [bool((r == o).all()) for o, r in zip(PIXELS, found, strict=True)]
    assert all(t != s for t, s in zip(turned, same, strict=True))
    assert 10 < sum(turned) < 30


def test_a_dot_is_moved_no_further_than_asked() -> None:
    dots = torch.zeros(200, 41, 41, 1, dtype=torch.uint8)
    dots[:, 18:23, 18:23] = 255
    moved = augment(dots, Augmentation(shift=0.2), rng()).float()[..., 0]
    places = torch.arange(41.0)
    mass = moved.sum((1, 2))
    centres = torch.stack([(moved.sum(2) * places).sum(1), (moved.sum(1) * places).sum(1)]) / mass
    reach = (centres - 20).abs()
    assert reach.max() <= 0.2 * 41 + 0.5
    assert reach.max() > 0.15 * 41


def test_scale_and_rotation_change_size_and_direction() -> None:
    bars = torch.zeros(200, 41, 41, 1, dtype=torch.uint8)
    bars[:, 19:22, 8:33] = 255
    scaled = augment(bars, Augmentation(scale=0.3), rng()).float()
    ink = scaled.sum((1, 2, 3)) / bars[0].sum()
    assert ink.min() < 0.7
    assert ink.max() > 1.4
    turned = augment(bars, Augmentation(rotate=20), rng()).float()[..., 0]
    left, right = turned[:, :, 9], turned[:, :, 31]
    tilt = (right * torch.arange(41.0)).sum(1) / right.sum(1).clamp(min=1)
    tilt -= (left * torch.arange(41.0)).sum(1) / left.sum(1).clamp(min=1)
    limit = 22 * np.tan(np.radians(20)) + 1
    assert tilt.abs().max() < limit
    assert tilt.max() > 0.5 * limit
    assert tilt.min() < -0.5 * limit


def test_thicken_only_adds_ink_to_a_share_of_the_pictures() -> None:
    found = augment(PIXELS, Augmentation(thicken=0.5), rng())
    assert (found >= PIXELS).all()
    changed = (found != PIXELS).flatten(1).any(1).float().mean().item()
    assert 0.3 < changed < 0.7


def test_light_changes_brightness_and_keeps_order() -> None:
    grey = torch.arange(60, 196, dtype=torch.uint8)[None, :, None, None].expand(50, 136, 1, 1)
    found = augment(grey, Augmentation(light=0.1), rng()).int()
    assert (found[:, 1:] >= found[:, :-1]).all()
    assert found.float().mean((1, 2, 3)).std() > 5


def test_impossible_augmentations_are_refused() -> None:
    for bad in ({"crop": -1}, {"scale": 1.5}, {"thicken": 2}, {"flip": True}):
        with pytest.raises(ValidationError):
            Augmentation(**bad)


def test_colour_moves_pictures_to_and_from_grey() -> None:
    mild = torch.full((200, 2, 2, 3), 100, dtype=torch.uint8)
    mild[..., 0] = 130
    found = augment(mild, Augmentation(colour=0.5), rng()).float()
    spread = found[..., 0] - found[..., 1]
    assert 14 <= spread.min() < 20
    assert 40 < spread.max() <= 46
    torch.testing.assert_close(found.mean(-1), torch.full((200, 2, 2), 110.0), rtol=0, atol=0.5)


def test_stronger_does_more_of_all_but_mirrors_only_what_may_be_mirrored() -> None:
    weak = Augmentation(crop=2, rotate=5)
    strong = stronger(weak)
    assert not strong.mirror
    assert strong.rotate > weak.rotate
    assert strong.light > 0
    assert stronger(Augmentation(mirror=True)).mirror
    assert stronger(stronger(stronger(strong))).scale <= 0.5
