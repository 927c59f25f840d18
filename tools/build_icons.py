"""Build the embedded picture set "Icons" from the npm package ``@iconify/json``.

Get the tarball with npm's ordinary client, then run the script::

    npm pack @iconify/json@VERSION
    pip install '.[icons]'
    python tools/build_icons.py --tarball iconify-json-VERSION.tgz --out src/fewgraft/data/embedded

The same tarball, curation file and library versions give the same bytes: every draw is seeded, and
drawings are compared by integer arithmetic, which no order of summation can change. What counts as
a class, which sets are used and which drawings are left out is decided in ``icons.toml``.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import hashlib
import io
import json
import lzma
import multiprocessing
import random
import re
import sys
import tarfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import resvg_py
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from fewgraft.data.icons import read_icons
from fewgraft.data.store import hash_arrays

PARTS = ("base/train", "base/val", "base/test", "novel/train", "novel/val", "novel/test")
SIDE = 32  # of a picture
LARGE = 128  # side of the first render, reduced to SIDE by averaging
GREY_LEVELS = 16
NORMAL = 32  # side of a drawing normalised for comparison
MARGIN = 2  # around its ink
BLURS = (0.8, 2.5)  # radii whose difference leaves edges and strokes
INK = (0.015, 0.80)  # mean ink of a picture outside of which it is empty or a blot
NEVER = 2.0  # a similarity that no two drawings reach
BLOCK = 2048  # rows of the similarity matrix computed at a time

Config = dict[str, Any]
T = TypeVar("T")
Pictures = NDArray[np.uint8]
Edges = NDArray[np.int8]
Pairs = NDArray[np.int64]


class Drawing(NamedTuple):
    """One icon of a set, with the class its name gives it."""

    label: str
    set: str
    icon: str
    svg: str


class Row(NamedTuple):
    """One line of the index; ``position`` is the picture's place among the renders."""

    label: str
    part: str
    set: str
    icon: str
    position: int


# --- names -----------------------------------------------------------------------------------


class Namer:
    """Maps icon names to classes by the rules of the curation file."""

    def __init__(self, config: Config) -> None:
        phrases: dict[str, str] = config["phrases"]
        longest_first = sorted(phrases, key=lambda phrase: (-len(phrase), phrase))
        self._phrases = phrases
        self._pattern = re.compile(rf"(?<![^-])(?:{'|'.join(longest_first)})(?![^-])")
        self._style = set(config["names"]["style"].split())
        self._words: dict[str, str] = config["words"]
        self._classes: dict[tuple[str, ...], str] = {}
        for label, names in config["classes"].items():
            for name in (label, *names):
                if self._classes.setdefault(self.words(name), label) != label:
                    raise ValueError(f"{name!r} belongs to two classes")

    def words(self, name: str) -> tuple[str, ...]:
        """The bag of words of a name, without style words and variant numbers."""
        plain = self._pattern.sub(lambda match: self._phrases[match[0]], name)
        words = [word for word in plain.split("-") if not self._is_style(word)]
        return tuple(sorted({self._words.get(word, word) for word in words}))

    def label(self, name: str) -> str | None:
        """The class of an icon, or None where no class lists its name."""
        return self._classes.get(self.words(name))

    def _is_style(self, word: str) -> bool:
        return word in self._style or re.fullmatch(r"\d{1,2}", word) is not None


# --- reading the package ---------------------------------------------------------------------


def read_package(tarball: Path) -> dict[str, Any]:
    """All JSON files of the package, by their path inside it."""
    files = {}
    with tarfile.open(tarball) as archive:
        for member in archive:
            if re.fullmatch(r"package/(collections|package|json/[^/]+)\.json", member.name):
                stream = archive.extractfile(member)
                assert stream is not None
                files[member.name.removeprefix("package/")] = json.load(stream)
    return files


def choose_sets(collections: dict[str, Any], config: Config) -> dict[str, Any]:
    """Sets whose licence, category and style allow their use here."""

    def usable(name: str, about: dict[str, Any]) -> bool:
        left_out = about.get("category") in config["sets"]["categories"]
        return (
            about["license"].get("spdx") in config["build"]["licences"]
            and not about.get("hidden")
            and not about.get("palette")
            and (not left_out or name in config["sets"]["keep"])
            and name not in config["sets"]["exclude"]
        )

    return {name: about for name, about in sorted(collections.items()) if usable(name, about)}


def to_svg(icon: dict[str, Any], defaults: dict[str, Any]) -> str:
    """A whole SVG document; sets store the inside and the box apart."""
    left, top, width, height = (
        icon.get(key, defaults.get(key, fallback))
        for key, fallback in (("left", 0), ("top", 0), ("width", 16), ("height", 16))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LARGE}" height="{LARGE}" '
        f'viewBox="{left} {top} {width} {height}" color="#fff">{icon["body"]}</svg>'
    )


class Exceptions:
    """Icons treated otherwise than their name says, found by ``set:icon`` patterns."""

    def __init__(self, config: Config) -> None:
        self._drop = re.compile("|".join(map(fnmatch.translate, config["drop"])))
        self._moved = [
            (re.compile(fnmatch.translate(pattern)), label)
            for pattern, label in config["moved"].items()
        ]

    def apply(self, icon: str, label: str | None) -> str | None:
        """The class of an icon after all; None if it is not used."""
        if label is None or self._drop.match(icon):
            return None
        return next((moved for pattern, moved in self._moved if pattern.match(icon)), label)


def find_drawings(package: dict[str, Any], sets: Iterable[str], config: Config) -> list[Drawing]:
    """Every icon of the sets that belongs to a class."""
    namer, exceptions = Namer(config), Exceptions(config)
    drawings = []
    for name in sets:
        content = package[f"json/{name}.json"]
        for icon, about in sorted(content["icons"].items()):
            label = exceptions.apply(f"{name}:{icon}", namer.label(icon))
            if label and not about.get("hidden"):
                drawings.append(Drawing(label, name, icon, to_svg(about, content)))
    return drawings


# --- pictures --------------------------------------------------------------------------------


def render(svg: str) -> tuple[Pictures, Edges, Edges]:
    """The picture and its two normalised forms, with the aspect ratio kept and stretched.

    Ink is the alpha channel: the sets used have one colour, so opacity is all there is to see.
    """
    png = resvg_py.svg_to_bytes(svg_string=svg, skip_system_fonts=True)
    ink = Image.open(io.BytesIO(bytes(png))).getchannel("A")
    picture = np.asarray(ink.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64)
    step = 255 // (GREY_LEVELS - 1)
    return (
        (np.round(picture / step) * step).astype(np.uint8),
        normalise(ink),
        normalise(ink, stretch=True),
    )


def normalise(ink: Image.Image, *, stretch: bool = False) -> Edges:
    """Crop to the ink, fit into a square, keep the edges: place and scale matter no more.

    Edges rather than ink are compared, as a large filled area would outweigh every detail in it: a
    plus and a minus in a filled circle differ in few pixels.
    """
    box = ink.point(lambda value: 255 * (value > 24)).getbbox() or (0, 0, 1, 1)
    cropped = ink.crop(box)
    scale = (NORMAL - 2 * MARGIN) / max(cropped.size)
    size = (max(1, round(cropped.width * scale)), max(1, round(cropped.height * scale)))
    if stretch:
        size = (NORMAL - 2 * MARGIN, NORMAL - 2 * MARGIN)
    square = Image.new("L", (NORMAL, NORMAL))
    corner = ((NORMAL - size[0]) // 2, (NORMAL - size[1]) // 2)
    square.paste(cropped.resize(size, Image.Resampling.BOX), corner)
    fine, coarse = (
        np.asarray(square.filter(ImageFilter.GaussianBlur(radius)), np.float64) for radius in BLURS
    )
    edges = fine - coarse
    normal: Edges = np.round(edges * (127 / max(np.abs(edges).max(), 1.0))).astype(np.int8)
    return normal.ravel()


def render_all(drawings: Sequence[Drawing], jobs: int) -> tuple[Pictures, Edges, Edges]:
    """Pictures and normalised forms of all drawings, in their order."""
    pictures = np.zeros((len(drawings), SIDE, SIDE), np.uint8)
    normals = np.zeros((len(drawings), NORMAL * NORMAL), np.int8)
    stretched = np.zeros_like(normals)
    with multiprocessing.Pool(jobs) as pool:
        results = pool.imap(render, (drawing.svg for drawing in drawings), chunksize=64)
        for index, forms in enumerate(progress(results, len(drawings), "render")):
            pictures[index], normals[index], stretched[index] = forms
    return pictures, normals, stretched


def has_shape(pictures: Pictures) -> NDArray[np.bool_]:
    """Pictures that are neither nearly empty nor nearly all ink."""
    ink = pictures.mean(axis=(1, 2)) / 255
    shaped: NDArray[np.bool_] = (ink >= INK[0]) & (ink <= INK[1])
    return shaped


def progress(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Pass items on, and tell standard error how far it has come."""
    for index, item in enumerate(items, start=1):
        if index % max(1, total // 50) == 0 or index == total:
            end = "\n" if index == total else ""
            print(f"\r{what}: {index}/{total}", end=end, file=sys.stderr, flush=True)
        yield item


# --- twins -----------------------------------------------------------------------------------


def find_twins(normals: Edges, labels: Sequence[str], same: float, other: float) -> Pairs:
    """Pairs (i < j) of drawings so similar that they count as one drawing.

    Drawings of two classes must be more similar than those of one: lock and unlock, or calendars
    with a plus and a minus, differ by a detail and are not twins. The products of small integers
    are exact in float32, so the pairs do not depend on the machine.
    """
    vectors = normals.astype(np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors).astype(np.float64))
    classes = np.unique(np.asarray(labels), return_inverse=True)[1]
    pairs = []
    starts = range(0, len(vectors), BLOCK)
    for start in progress(starts, len(starts), "compare"):
        some = slice(start, start + BLOCK)
        dots = vectors[some] @ vectors[start:].T
        rows, columns = np.nonzero(dots >= same * np.outer(lengths[some], lengths[start:]))
        similarity = dots[rows, columns] / (lengths[rows + start] * lengths[columns + start])
        limits = np.where(classes[rows + start] == classes[columns + start], same, other)
        twins = (columns > rows) & (similarity >= limits)
        pairs.append(np.stack([rows[twins], columns[twins]], axis=1) + start)
    return np.concatenate(pairs)


def keep_distinct(
    labels: Sequence[str], pairs: Pairs
) -> tuple[list[int], Counter[tuple[str, str]]]:
    """Pictures of which no two are twins, and how often twins bore two class names.

    Twins of two classes show a name that means two things, so neither is kept. Of twins of one
    class those with the fewest twins are kept, which keeps most.
    """
    twins: dict[int, list[int]] = defaultdict(list)
    ambiguous: set[int] = set()
    clashes: Counter[tuple[str, str]] = Counter()
    for first, second in pairs.tolist():
        twins[first].append(second)
        twins[second].append(first)
        if labels[first] != labels[second]:
            ambiguous.update((first, second))
            clashes[min(labels[first], labels[second]), max(labels[first], labels[second])] += 1
    kept: set[int] = set()
    for index in sorted(range(len(labels)), key=lambda index: len(twins[index])):
        if index not in ambiguous and kept.isdisjoint(twins[index]):
            kept.add(index)
    return sorted(kept), clashes


# --- parts -----------------------------------------------------------------------------------


def draw_classes(sizes: dict[str, int], config: Config, rng: random.Random) -> dict[str, str]:
    """Give every class its side: "base", or one of the three novel parts.

    A class is drawn for base with a weight that grows with its size, since base classes are also
    divided into train, validation and test pictures.
    """
    novel: dict[str, int] = config["build"]["novel"]
    ranked = sorted(sizes, key=lambda label: rng.random() ** (1 / sizes[label]), reverse=True)
    count = len(ranked) - sum(novel.values())
    sides = dict.fromkeys(ranked[:count], "base")
    rest = ranked[count:]
    rng.shuffle(rest)
    for part, size in novel.items():
        sides |= dict.fromkeys(rest[:size], f"novel/{part}")
        rest = rest[size:]
    return sides


def split_by_family(
    members: dict[str, list[int]], shares: dict[str, float], rng: random.Random
) -> dict[int, str]:
    """Divide a base class so that each family of sets lies in one part only.

    Families go, largest first, to the part that is furthest below its share.
    """
    total = sum(map(len, members.values()))
    missing = {part: share * total for part, share in shares.items()}
    families = sorted(members)
    rng.shuffle(families)
    parts: dict[int, str] = {}
    for family in sorted(families, key=lambda name: -len(members[name])):
        part = max(missing, key=lambda name: missing[name] / shares[name])
        missing[part] -= len(members[family])
        parts |= dict.fromkeys(members[family], f"base/{part}")
    return parts


def assign_parts(drawings: Sequence[Drawing], kept: Sequence[int], config: Config) -> list[Row]:
    """Classes large enough, cut to the cap, with a part for every picture."""
    build = config["build"]
    rng = random.Random(build["seed"])
    family = {name: key for key, names in config["families"].items() for name in names}
    by_class: dict[str, list[int]] = defaultdict(list)
    for index in kept:
        by_class[drawings[index].label].append(index)
    chosen = {
        label: sorted(rng.sample(members, min(len(members), build["cap"])))
        for label, members in sorted(by_class.items())
        if len(members) >= build["minimum"]
    }
    sides = draw_classes({label: len(members) for label, members in chosen.items()}, config, rng)
    rows = []
    for label, members in chosen.items():
        parts = dict.fromkeys(members, sides[label])
        if sides[label] == "base":
            families: dict[str, list[int]] = defaultdict(list)
            for index in members:
                families[family.get(drawings[index].set, drawings[index].set)].append(index)
            parts = split_by_family(families, build["shares"], rng)
        for index, part in parts.items():
            rows.append(Row(label, part, drawings[index].set, drawings[index].icon, index))
    return sorted(rows, key=lambda row: (PARTS.index(row.part), row.label, row.set, row.icon))


def check_parts(rows: Sequence[Row], least: dict[str, int]) -> None:
    """Stop if a base class has too few pictures in a part."""
    counts = Counter((row.label, row.part) for row in rows)
    base = {row.label for row in rows if row.part == "base/train"}
    for part, minimum in least.items():
        short = [label for label in sorted(base) if counts[label, f"base/{part}"] < minimum]
        if short:
            raise SystemExit(f"fewer than {minimum} pictures in base/{part}: {', '.join(short)}")


# --- writing ---------------------------------------------------------------------------------


def compress(data: bytes) -> bytes:
    """Compress with xz at its strongest."""
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)


def to_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """A CSV file with Unix line ends."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def to_npy(pictures: Pictures) -> bytes:
    """The bytes of a .npy file."""
    stream = io.BytesIO()
    np.save(stream, pictures)
    return stream.getvalue()


def attribution(rows: Sequence[Row], sets: dict[str, Any]) -> bytes:
    """Who drew what, under which licence."""
    used = Counter(row.set for row in rows)
    header = ("set", "name", "author", "author_url", "licence", "spdx", "licence_url", "pictures")
    lines = []
    for name in sorted(used):
        about = sets[name]
        author, licence = about["author"], about["license"]
        who = (about["name"], author["name"], author.get("url", ""))
        text = licence.get("url") or f"https://spdx.org/licenses/{licence['spdx']}.html"
        terms = (licence["title"], licence["spdx"], text)
        lines.append((name, *who, *terms, used[name]))
    return to_csv(header, lines)


def count_classes(rows: Sequence[Row]) -> dict[str, int]:
    """Classes of every part."""
    return {part: len({row.label for row in rows if row.part == part}) for part in PARTS}


def count_pictures(rows: Sequence[Row]) -> dict[str, int]:
    """Pictures of every part."""
    return {part: sum(row.part == part for row in rows) for part in PARTS}


def write(out: Path, rows: Sequence[Row], pictures: Pictures, sets: dict[str, Any]) -> None:
    """Pictures, index and attribution."""
    out.mkdir(parents=True, exist_ok=True)
    chosen = pictures[[row.position for row in rows]]
    index = to_csv(("class", "part", "set", "icon"), (row[:4] for row in rows))
    (out / "icons.npy.xz").write_bytes(compress(to_npy(chosen)))
    (out / "icons.csv.xz").write_bytes(compress(index))
    (out / "icons-attribution.csv").write_bytes(attribution(rows, sets))


def build(tarball: Path, curation: Path, out: Path, jobs: int) -> None:
    """Everything from the tarball to the files of the package."""
    config = tomllib.loads(curation.read_text())
    same, other = config["build"]["same"], config["build"]["other"]
    alike = config["build"]["stretched"]
    package = read_package(tarball)
    sets = choose_sets(package["collections.json"], config)
    drawings = find_drawings(package, sets, config)
    pictures, normals, stretched = render_all(drawings, jobs)
    shaped = np.flatnonzero(has_shape(pictures))
    labels = [drawings[index].label for index in shaped]
    twins = find_twins(normals[shaped], labels, same, other)
    more_twins = find_twins(stretched[shaped], labels, alike, NEVER)
    kept, clashes = keep_distinct(labels, np.unique(np.concatenate([twins, more_twins]), axis=0))
    rows = assign_parts(drawings, [int(shaped[index]) for index in kept], config)
    check_parts(rows, config["build"]["least"])
    write(out, rows, pictures, sets)
    summary = {
        "name": "icons",
        "package": "@iconify/json",
        "version": package["package.json"]["version"],
        "tarball_sha256": hashlib.sha256(tarball.read_bytes()).hexdigest(),
        "pictures": len(rows),
        "classes": count_classes(rows),
        "pictures_by_part": count_pictures(rows),
        "side": SIDE,
        "grey_levels": GREY_LEVELS,
        "sets": len({row.set for row in rows}),
        "near_duplicate_threshold": same,
        "near_duplicate_threshold_between_classes": other,
        "near_duplicate_threshold_stretched": alike,
        "candidates": len(drawings),
        "empty_or_full": len(drawings) - len(shaped),
        "near_duplicates_removed": len(shaped) - len(kept),
        "pairs_with_two_labels": sum(clashes.values()),
        "seed": config["build"]["seed"],
    }
    summary["content"] = hash_arrays(*read_icons(out))
    (out / "icons.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(json.dumps(summary, indent=2))
    print("twins most often found in two classes, to be looked at in the curation file:")
    for (first, second), count in clashes.most_common(20):
        print(f"  {first} / {second}: {count}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tarball", type=Path, required=True, help="from npm pack @iconify/json")
    parser.add_argument("--out", type=Path, required=True, help="folder of the built files")
    parser.add_argument("--curation", type=Path, default=Path(__file__).with_name("icons.toml"))
    parser.add_argument("--jobs", type=int, default=2, help="render processes (default: 2)")
    arguments = parser.parse_args()
    build(arguments.tarball, arguments.curation, arguments.out, arguments.jobs)


if __name__ == "__main__":
    main()
