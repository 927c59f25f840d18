"""Every row of a folder in one table that a browser sorts, filters and compares.

Without scripts it is a plain table, best rows of the task first. With them, a click on a column
sorts, words and lists filter, and all rows are compared with a chosen one, episode by episode: the
page holds how many queries each row has right in each episode.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import torch

from fewgraft.bench.results import Results, Row
from fewgraft.episodes import EpisodeSettings
from fewgraft.html import Html, boxed, joined, percent, tag

COLUMNS = {
    "acc": "Acc",
    "delta": "Δ",
    "b_all": "b/all",
    "n_all": "n/all",
    "b_b": "b/b",
    "n_n": "n/n",
}
# The task itself first, then whatever is nearest to it.
SETTINGS = ("s2i", "s2i-transductive", "incremental", "semi-fsl", "transductive-fsl", "fsl")


@dataclass(frozen=True)
class RankedRow:
    """A row, and how many of its queries are right in each episode."""

    row: Row
    right: tuple[int, ...]
    asked: int  # queries per episode

    @property
    def queries(self) -> str:
        """Rows that share it were asked the same, episode by episode."""
        row, settings = self.row, self.row.episode_settings
        same = [row.content, row.split, settings["seed"], row.ways, row.n_base > 0, row.episodes]
        return "/".join(str(part) for part in [*same, self.asked])


def places(results: Results, rows: Sequence[Row]) -> list[RankedRow]:
    """The rows with their answers, the task itself first, best first."""
    found = []
    for row in rows:
        settings = EpisodeSettings(**row.episode_settings)
        asked = settings.ways * settings.queries + (settings.base_queries if row.n_base else 0)
        right = (results.scores(row).acc * asked).round().to(torch.int64)
        found.append(RankedRow(row, tuple(right.tolist()), asked))
    return sorted(
        found,
        key=lambda place: (
            SETTINGS.index(place.row.setting),
            place.row.shots,
            -place.row.interval("acc").mean,
        ),
    )


def leaderboard(ranked: Sequence[RankedRow]) -> Html:
    """The table with what it takes to search it."""
    if not ranked:
        return Html()
    head = [*("Method", "Setting", "Shots"), COLUMNS["acc"], "against the reference"]
    head += [title for name, title in COLUMNS.items() if name != "acc"]
    cells = [
        tag("th", tag("button", title, type="button"), scope="col", class_=_kind(n))
        for n, title in enumerate(head)
    ]
    table = tag(
        "table",
        tag("thead", tag("tr", *cells)),
        tag("tbody", *map(_line, ranked)),
        id="board",
    )
    explained = (
        "A click on a column sorts. Differences are paired over the same queries; coloured ones "
        "are clear of 0 at 95 %. Acc and shares in %, with 95 % intervals."
    )
    return joined(
        [_controls(ranked), boxed(table, "Leaderboard"), tag("p", explained, class_="note")]
    )


def script() -> str:
    """What makes the table one to search."""
    return (resources.files("fewgraft") / "bench" / "leaderboard.js").read_text()


def _controls(ranked: Sequence[RankedRow]) -> Html:
    settings = [s for s in SETTINGS if any(place.row.setting == s for place in ranked)]
    shots = sorted({place.row.shots for place in ranked})
    names = [f"{place.row.title}, {place.row.setting}, {place.row.shots}-shot" for place in ranked]
    return tag(
        "div",
        _labelled("Method", tag("input", id="search", type="search", autocomplete="off")),
        _labelled("Setting", _choice("setting", "all", {s: s for s in settings})),
        _labelled("Shots", _choice("shots", "all", {str(k): str(k) for k in shots})),
        _labelled(
            "Reference",
            _choice("reference", "none", {str(n): name for n, name in enumerate(names)}),
        ),
        tag("output", f"{len(ranked)} rows", id="shown"),
        class_="controls",
    )


def _labelled(text: str, control: Html) -> Html:
    return tag("label", tag("span", text), control)


def _choice(name: str, none: str, options: dict[str, str]) -> Html:
    listed = [tag("option", text, value=value) for value, text in {"": none, **options}.items()]
    return tag("select", *listed, id=name)


def _kind(column: int) -> str:
    return "number" if column > 1 else ""


def _line(place: RankedRow) -> Html:
    row = place.row
    packed = base64.b64encode(b"".join(n.to_bytes(2, "little") for n in place.right)).decode()
    shown = [_figure(row, name) for name in COLUMNS]
    return tag(
        "tr",
        tag("th", row.title, scope="row"),
        tag("td", row.setting),
        tag("td", str(row.shots), class_="number"),
        shown[0],
        tag("td", class_="number"),
        *shown[1:],
        data_setting=row.setting,
        data_shots=str(row.shots),
        data_queries=place.queries,
        data_asked=str(place.asked),
        data_right=packed,
    )


def _figure(row: Row, name: str) -> Html:
    value = row.interval(name)
    if value.mean != value.mean:  # NaN: the setting does not have it
        return tag("td", class_="number", data_value="")
    half = tag("small", f"± {percent(value.half, 2)}") if name == "acc" else ""
    text = percent(value.mean, 2)
    return tag("td", text, half, class_="number", data_value=f"{100 * value.mean:.4f}")
