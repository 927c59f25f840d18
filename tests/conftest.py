"""Shared fixtures: real data where it is there, small files of exact layouts where it is not."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from campaign.layouts import Pixels, noise, photo_tree
from fewgraft.data.icons import load_icons
from fewgraft.data.store import ImageStore

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytest.register_assert_rewrite("pages")

CIFAR = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar100"
needs_cifar = pytest.mark.skipif(not CIFAR.is_dir(), reason=f"CIFAR-100 is not in {CIFAR}")

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

__all__ = ["CHROMIUM", "CIFAR", "DRIVER", "Pixels", "needs_cifar", "noise"]


@pytest.fixture(scope="session")
def icons() -> ImageStore:
    return load_icons()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the data sets of whoever runs it."""
    monkeypatch.setenv("FEWGRAFT_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features once for whoever looks at figures; a bank's name says all that is in it."""
    return tmp_path_factory.getbasetemp() / "home-of-figures"


@pytest.fixture
def _shared_home(home: Path, _own_home: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWGRAFT_HOME", str(home))


@pytest.fixture
def make_tree(tmp_path: Path) -> Callable[..., Path]:
    """A tree of class folders with small distinct pictures."""

    def make(classes: int = 8, pictures: int = 10, name: str = "my photos") -> Path:
        return photo_tree(tmp_path / name, classes, pictures)

    return make


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Chrome"]:
    if not (CHROMIUM and DRIVER) and "CI" not in os.environ:
        pytest.skip("chromium and chromedriver are not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        "use-fake-device-for-media-stream",  # a camera that shows a test card
        "use-fake-ui-for-media-stream",
        f"user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()
