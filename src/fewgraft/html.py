"""Pages of one HTML file that need nothing else: no font, no request, no script but their own."""

import base64
import hashlib
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

# A browser that obeys this asks the network for nothing, whatever the page holds.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
VOID = {"img", "input", "meta"}


# --------------------------------------------------------------------------------------- elements


class Html(str):
    """Markup; any other text is escaped when it is put into an element."""


def tag(name: str, /, *content: str, **attributes: str) -> Html:
    """An element; `class_` and `aria_label` are attributes as HTML writes them."""
    names = {key: key.rstrip("_").replace("_", "-") for key in attributes}
    opened = "".join(f' {names[k]}="{html.escape(v)}"' for k, v in attributes.items())
    if name in VOID:
        return Html(f"<{name}{opened}>")
    return Html(f"<{name}{opened}>{joined(content)}</{name}>")


def joined(parts: Iterable[str]) -> Html:
    """Markup as it is, text escaped and its figures unbroken."""
    return Html("".join(p if isinstance(p, Html) else _text(p) for p in parts))


def _text(text: str) -> str:
    """Escaped, with spaces at which no line ends in figures: "81.0 ± 1.6 %"."""
    for sign in (" ± ", " %"):
        text = text.replace(sign, sign.replace(" ", "\N{NO-BREAK SPACE}"))
    return html.escape(text, quote=False)


def data_uri(content: bytes, kind: str = "png") -> str:
    """A picture as an address that holds it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def picture_uri(image: "Image.Image", kind: str = "png") -> str:
    """The same, of a picture that is to be packed first."""
    packed = io.BytesIO()
    image.save(packed, format=kind, optimize=True)
    return data_uri(packed.getvalue(), kind)


# ------------------------------------------------------------------------------------------ page


@dataclass(frozen=True)
class HtmlPart:
    """A section of a page, as the list of contents names it."""

    anchor: str
    title: str
    body: Html


def document(title: str, top: Html, parts: Iterable[HtmlPart], script: str = "") -> str:
    """The whole file: what is on top, a list of contents, and the parts that have a body.

    A script runs at the end; the page's policy names its hash and lets no other run.
    """
    shown = [part for part in parts if part.body]
    links = [tag("li", tag("a", part.title, href=f"#{part.anchor}")) for part in shown]
    sections = [tag("section", tag("h2", p.title), p.body, id=p.anchor) for p in shown]
    body = tag(
        "body",
        tag("header", tag("h1", title), top),
        tag("nav", tag("ul", *links), aria_label="Contents"),
        tag("main", *sections),
        tag("script", Html(script)) if script else "",
    )
    text = f"<!DOCTYPE html>\n{tag('html', _head(title, script), body, lang='en')}\n"
    return text.encode("utf-8", "backslashreplace").decode()  # names may be no valid text


def _head(title: str, script: str) -> Html:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"{POLICY}; script-src 'sha256-{digest}'" if script else POLICY
    style = (resources.files("fewgraft") / "html.css").read_text()
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", title),
        tag("style", Html(style)),
    )


# ------------------------------------------------------------------------------------------ words


def percent(share: float, digits: int = 1) -> str:
    """As text; a minus sign is one."""
    return f"{100 * share:.{digits}f}".replace("-", "−")


def counted(number: int, noun: str) -> str:
    """1 picture, 2 pictures, 2 classes."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def listed(parts: Sequence[str]) -> str:
    """A, b and c."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


# ----------------------------------------------------------------------------------------- blocks


def tile(name: str, value: str, unit: str, meaning: str, beside: str = "") -> Html:
    """A number to take away, with what it means and what to compare it with."""
    return tag(
        "li",
        tag("span", name, class_="name"),
        tag("span", value, tag("small", unit), class_="value"),
        tag("span", meaning, class_="meaning"),
        tag("span", beside, class_="rival"),
    )


def boxed(wide: Html, label: str, heading: str = "") -> Html:
    """What may be wider than a phone scrolls in a box of its own, which a keyboard can reach."""
    box = tag("div", wide, class_="scroll", role="region", aria_label=label, tabindex="0")
    return tag("div", heading, box, class_="card")


def bar(
    name: str, share: float, mark: float | None = None, *, title: str, picture: str = ""
) -> Html:
    """A share from 0 to 1 as a bar with a name before it; `mark` is a line across it."""
    line = "" if mark is None else tag("span", class_="line", style=f"left:{100 * mark:.1f}%")
    return tag(
        "li",
        picture,
        tag("span", name, class_="name", title=name),
        tag(
            "span",
            tag("span", class_="fill", style=f"width:{100 * share:.1f}%"),
            line,
            class_="bar",
        ),
        tag("span", f"{percent(share, 0)} %", class_="value"),
        title=title,
    )


def bars(heading: str, ordered: Sequence[Html], shown: int, kind: str = "bars") -> Html:
    """Bars under a heading; one has to unfold those after the first few."""
    first, rest = ordered[:shown], ordered[shown:]
    more = tag(
        "details",
        tag("summary", f"{len(rest)} more"),
        tag("ol", *rest, class_=kind, start=str(shown + 1)),
    )
    return tag(
        "div",
        tag("h3", f"{heading} ", tag("small", str(len(ordered)))),
        tag("ol", *first, class_=kind),
        more if rest else "",
    )


def matrix(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float]]) -> Html:
    """Shares from 0 to 1 as a coloured table; the first column is what one wants."""
    head = tag("tr", tag("td"), *(tag("th", column, scope="col") for column in columns))
    lines = [
        tag(
            "tr",
            tag("th", name, scope="row"),
            *(
                tag(
                    "td",
                    percent(share),
                    class_="good" if place == 0 else "bad",
                    style=f"--share:{share:.4f}",
                )
                for place, share in enumerate(values)
            ),
        )
        for name, values in rows.items()
    ]
    return tag("table", tag("caption", title), tag("thead", head), tag("tbody", *lines))
