"""How a page is looked at: its words by a parser, its looks in a real browser."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

LOOKS = [(390, "light"), (1280, "light"), (1280, "dark")]


def words(markup: str) -> str:
    """What a reader reads."""

    class Reader(HTMLParser):
        text = ""

        def handle_data(self, data: str) -> None:
            self.text += data

    reader = Reader()
    reader.feed(markup)
    return reader.text.replace("\N{NO-BREAK SPACE}", " ")


class Strict(HTMLParser):
    """Fails at whatever could run or ask for something, but for a script that the policy names."""

    policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""
        assert tag != "script" or not attrs
        assert not {name for name, _ in attrs if name.startswith("on")}
        assert dict(attrs).get("src", "data:").startswith("data:")  # type: ignore[union-attr]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            digest = base64.b64encode(hashlib.sha256(data.encode()).digest()).decode()
            assert f"script-src 'sha256-{digest}'" in self.policy


def shown(browser: "Chrome", path: Path, width: int, scheme: str) -> None:
    """Open a page in a window of that width and colour scheme."""
    looked_at(browser, width, scheme)
    browser.get(path.as_uri())


def looked_at(browser: "Chrome", width: int, scheme: str) -> None:
    """Make the window that wide, in that colour scheme."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    command: Any = browser.execute_cdp_cmd
    command("Emulation.setDeviceMetricsOverride", size)
    command("Emulation.setEmulatedMedia", media)


def logged(browser: "Chrome", kind: str) -> list[dict[str, Any]]:
    """What was logged since the last time."""
    log: Any = browser.get_log
    return list(log(kind))


def assert_fit_to_be_seen(browser: "Chrome", path: Path, width: int, scheme: str) -> None:
    """Nothing too wide, no broken picture, the right colours, no complaint and no request."""
    for kind in ("browser", "performance"):
        logged(browser, kind)
    shown(browser, path, width, scheme)

    def value(script: str) -> Any:
        return browser.execute_script(f"return {script}")

    value("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert value("innerWidth") == width
    assert value("document.documentElement.scrollWidth") <= width
    outside = "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll'))"
    wide = value(f"{outside}.filter(e => e.getBoundingClientRect().right > innerWidth).length")
    assert wide == 0, "only boxes that scroll by themselves may hold wider things"
    assert value("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert value("[...document.images].every(i => i.hasAttribute('alt'))")
    colour = re.findall(r"\d+", value("getComputedStyle(document.body).backgroundColor"))[:3]
    assert (sum(map(int, colour)) < 3 * 60) == (scheme == "dark")
    assert [entry["message"] for entry in logged(browser, "browser")] == []
    events = [json.loads(e["message"])["message"] for e in logged(browser, "performance")]
    sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
    of_page = [  # the browser's own first tab may still be loading itself
        event["request"]["url"] for event in sent if event["documentURL"] == path.as_uri()
    ]
    addresses = [address for address in of_page if not address.startswith("data:")]
    assert addresses == [path.as_uri()], "the page itself, and nothing else"
