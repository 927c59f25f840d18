"""Draw the figure of the README: prototypes before and after refinement, light and dark.

python tools/draw_idea.py docs/img

The points are made up; what is made of them is not. They are directions on a small patch of the
sphere, and prototypes (Eq. 2), pseudo-labels and refinement (Eqs. 3–4) are those of the package.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewgraft.prototypes import (
    Refinement,
    base_evidence,
    direction_logits,
    directions,
    prototypes,
    pseudo_labels,
    refine,
)

PANEL, HEIGHT, GAP, TOP, BOTTOM = 400, 300, 40, 34, 70  # in pixels of the drawing
CURVATURE = 8.0  # how far the patch lies from the middle of the sphere
GAMMA = 700.0
REFINEMENT = Refinement(steps=5, alpha=1.0)
PER_CLASS = 16  # unlabelled pictures
Point = tuple[float, float]


@dataclass(frozen=True)
class Theme:
    """Colours of one mode: ink, quiet ink, and one colour per novel class."""

    name: str
    ink: str
    quiet: str
    base: str
    novel: tuple[str, str]
    tint: float  # opacity of the regions


THEMES = (
    Theme("light", "#1f2328", "#656d76", "#8c959f", ("#c2410c", "#1d4ed8"), 0.10),
    Theme("dark", "#e6edf3", "#9198a1", "#6e7681", ("#fb923c", "#79a7ff"), 0.16),
)


@dataclass(frozen=True)
class Scene:
    """Directions [n, 3] of everything that is drawn; classes are rows."""

    base: Tensor  # W_b
    support: Tensor  # one per novel class
    unlabelled: Tensor
    before: Tensor  # novel prototypes
    after: Tensor
    counted: Tensor  # Ŷ′ of the unlabelled pictures after refinement [U, N]


def make_scene() -> Scene:
    """Three base classes, two novel ones, one support each on the edge of its class."""
    rng = np.random.default_rng(4)
    base = [(-0.78, 0.44), (-0.80, -0.46), (0.02, -0.62)]
    novel = [(-0.12, 0.42), (0.68, 0.02)]
    support = [(-0.47, 0.66), (0.33, 0.36)]
    centres = np.repeat([*base, *novel], PER_CLASS, axis=0)
    spread = centres + 0.125 * rng.standard_normal(centres.shape)
    w_b, s, u = (_lifted(points)[None] for points in (base, support, spread))
    labels = torch.arange(len(novel))[None]
    before = prototypes(s, labels, len(novel))
    base_logits = direction_logits(u, w_b, GAMMA)
    after = refine(before, s, labels, u, base_logits, GAMMA, REFINEMENT)
    counted = pseudo_labels(
        direction_logits(u, after, GAMMA), base_evidence(base_logits, REFINEMENT), REFINEMENT
    )
    return Scene(w_b[0], s[0], u[0], before[0], after[0], counted[0])


def _lifted(points: Sequence[Point] | np.ndarray) -> Tensor:
    """Points of the plane [n, 2] as directions [n, 3]."""
    flat = torch.as_tensor(np.asarray(points), dtype=torch.float64)
    return directions(torch.cat([flat, torch.full_like(flat[:, :1], CURVATURE)], dim=1))


def _place(direction: Tensor) -> Point:
    """Where a direction lies in a panel."""
    x, y = (direction[:2] / direction[2] * CURVATURE).tolist()
    return PANEL / 2 * (1 + x / 1.1), HEIGHT / 2 * (1 - y / 0.95)


def region(own: Tensor, others: Tensor) -> list[Point]:
    """The polygon of a panel in which a class has the largest cosine (borders are straight)."""
    corners = [(-1.1, -0.95), (1.1, -0.95), (1.1, 0.95), (-1.1, 0.95)]
    polygon = [np.array([*corner, CURVATURE]) for corner in corners]
    for other in others:
        normal = (own - other).numpy()
        kept = []
        for a, b in zip(polygon, [*polygon[1:], polygon[0]], strict=True):
            inside, next_inside = normal @ a, normal @ b
            if inside >= 0:
                kept.append(a)
            if inside * next_inside < 0:
                kept.append(a + (b - a) * inside / (inside - next_inside))
        polygon = kept
    return [_place(torch.as_tensor(corner)) for corner in polygon]


def panel(scene: Scene, theme: Theme, *, refined: bool) -> str:
    """One half of the figure."""
    novel = scene.after if refined else scene.before
    parts = [f'<rect width="{PANEL}" height="{HEIGHT}" fill="none" stroke="{theme.base}"/>']
    for place, colour in enumerate(theme.novel):
        others = torch.cat([scene.base, novel[:place], novel[place + 1 :]])
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in region(novel[place], others))
        parts.append(
            f'<polygon points="{corners}" fill="{colour}" fill-opacity="{theme.tint}" '
            f'stroke="{colour}" stroke-opacity="0.5" stroke-dasharray="4 3"/>'
        )
    for direction, weights in zip(scene.unlabelled, scene.counted.tolist(), strict=True):
        best = int(np.argmax(weights))
        counts = refined and weights[best] > 0.5
        parts.append(ring(_place(direction), theme.novel[best] if counts else theme.base, counts))
    parts += [square(_place(direction), theme.base) for direction in scene.base]
    for place, colour in enumerate(theme.novel):
        if refined:
            parts.append(arrow(_place(scene.before[place]), _place(novel[place]), colour))
        parts.append(diamond(_place(novel[place]), colour, theme.ink))
        parts.append(dot(_place(scene.support[place]), colour, theme.ink))
    return "".join(parts)


def ring(at: Point, colour: str, filled: bool) -> str:
    """An unlabelled picture; filled where it counts for a novel class."""
    fill = f'fill="{colour}" fill-opacity="0.55"' if filled else 'fill="none"'
    return f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="3.4" {fill} stroke="{colour}"/>'


def dot(at: Point, colour: str, edge: str) -> str:
    """A support picture, which lies on its prototype where it is the only one."""
    return (
        f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4.5" fill="{colour}" '
        f'stroke="{edge}" stroke-width="1.5"/>'
    )


def square(at: Point, colour: str) -> str:
    """A row of W_b."""
    return f'<rect x="{at[0] - 6:.1f}" y="{at[1] - 6:.1f}" width="12" height="12" fill="{colour}"/>'


def diamond(at: Point, colour: str, edge: str) -> str:
    """A novel prototype."""
    return (
        f'<path d="M0 -11L11 0L0 11L-11 0Z" transform="translate({at[0]:.1f} {at[1]:.1f})" '
        f'fill="{colour}" stroke="{edge}" stroke-width="1.5"/>'
    )


def arrow(start: Point, end: Point, colour: str) -> str:
    """The way of a prototype, which ends before the diamond does."""
    way = np.subtract(end, start)
    tip = np.asarray(end) - way / np.linalg.norm(way) * 12
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{tip[0]:.1f}" y2="{tip[1]:.1f}" '
        f'stroke="{colour}" stroke-width="2.5"/>'
    )


def legend(theme: Theme) -> str:
    """What the marks mean, in two lines below the panels."""
    first = theme.novel[0]
    entries = [
        (square((9, 0), theme.base), "base class: a row of W_b, unchanged"),
        (dot((9, 0), first, theme.ink), "support: labelled picture of a novel class"),
        (diamond((9, 0), first, theme.ink), "prototype of a novel class"),
        (ring((9, 0), theme.base, False), "unlabelled picture"),
        (ring((9, 0), first, True), "unlabelled, counts for a novel class"),
        (swatch(first, theme), "region of a novel class"),
    ]
    places = [(0, 0), (275, 0), (600, 0), (0, 26), (275, 26), (600, 26)]
    return "".join(
        f'<g transform="translate({x} {y})">{mark}{label(26, 4, text, theme)}</g>'
        for (x, y), (mark, text) in zip(places, entries, strict=True)
    )


def swatch(colour: str, theme: Theme) -> str:
    """A piece of a region."""
    return (
        f'<rect x="1" y="-7" width="16" height="14" fill="{colour}" '
        f'fill-opacity="{theme.tint}" stroke="{colour}" stroke-opacity="0.5" '
        f'stroke-dasharray="4 3"/>'
    )


def label(x: float, y: float, text: str, theme: Theme, *, strong: bool = False) -> str:
    """A line of text."""
    style = f'font-size="14" font-weight="600" fill="{theme.ink}"'
    if not strong:
        style = f'font-size="12" fill="{theme.quiet}"'
    return f'<text x="{x}" y="{y}" {style}>{text}</text>'


def figure(scene: Scene, theme: Theme) -> str:
    """The whole drawing."""
    width, height = 2 * PANEL + GAP + 2, TOP + HEIGHT + BOTTOM
    titles = ("Prototypes of one labelled picture each", "Refined with the unlabelled set")
    halves = "".join(
        f'<g transform="translate({1 + number * (PANEL + GAP)} {TOP})">'
        f"{label(0, -12, title, theme, strong=True)}{panel(scene, theme, refined=number == 1)}</g>"
        for number, title in enumerate(titles)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" '
        f'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
        f"<title>Two novel classes beside three base classes, before and after refinement</title>"
        f"{halves}"
        f'<g transform="translate(1 {TOP + HEIGHT + 26})">{legend(theme)}</g></svg>\n'
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the two files")
    arguments = parser.parse_args()
    for theme in THEMES:
        path = arguments.out / f"idea-{theme.name}.svg"
        path.write_text(figure(make_scene(), theme))
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
