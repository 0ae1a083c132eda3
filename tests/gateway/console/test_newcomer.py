"""What one finds who sees the page for the first time; and the pictures of it in the docs.

`make screenshots` keeps the pictures that are taken on the way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gateway.console.conftest import Site, StartSite
from tests.gateway.console.scene import later, shop

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from playwright.sync_api import Page as Tab

IMAGES = Path(__file__).parents[3] / "docs" / "images"
NARROW = {"width": 390, "height": 844}


class Camera:
    """Takes pictures; they are kept where PENSTOCK_TEST_SCREENSHOTS says so."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.taken: set[str] = set()

    def take(self, tab: Tab, name: str) -> None:
        picture = self._directory / f"page-{name}.png"
        tab.screenshot(path=picture)
        assert picture.stat().st_size > 10_000
        self.taken.add(picture.name)


@pytest.fixture
def camera(tmp_path: Path) -> Camera:
    directory = Path(os.environ.get("PENSTOCK_TEST_SCREENSHOTS") or tmp_path)
    directory.mkdir(exist_ok=True)
    return Camera(directory)


def test_a_newcomer_finds_what_he_looks_for(
    start_site: StartSite, tab: Tab, chromium: Browser, camera: Camera
) -> None:
    site = start_site("--console-write")
    with shop(site):
        later(site, 250)
        which_consumer_is_stuck_and_why(site, tab, camera)
        the_last_message_of_a_key(tab, camera)
        who_wrote_it(tab, camera)
        in_the_dark_and_on_a_telephone(site, chromium, camera)
    kept = {each.name for each in IMAGES.glob("page-*.png")}
    assert kept == camera.taken, "make screenshots"
    docs = (IMAGES.parent / "console.md").read_text() + (
        IMAGES.parents[1] / "README.md"
    ).read_text()
    assert all(name in docs for name in kept)


def which_consumer_is_stuck_and_why(site: Site, tab: Tab, camera: Camera) -> None:
    tab.goto(site.url)
    tab.get_by_text("Produced: 0 records/s").wait_for(timeout=120_000)
    finding = tab.get_by_role("listitem").filter(has_text="billing has read nothing of orders-3")
    assert "transaction payments-7" in finding.inner_text()
    camera.take(tab, "overview")
    tab.get_by_role("navigation", name="Pages").get_by_role("link", name="Groups").click()
    tab.get_by_role("link", name="billing").click()
    tab.get_by_text("payments-7").first.wait_for()
    camera.take(tab, "group")
    tab.get_by_role("link", name="payments-7").first.click()
    tab.get_by_role("heading", name="payments-7").wait_for()
    camera.take(tab, "transaction")


def the_last_message_of_a_key(tab: Tab, camera: Camera) -> None:
    tab.get_by_role("navigation", name="Pages").get_by_role("link", name="Topics").click()
    tab.get_by_role("link", name="orders", exact=True).click()
    tab.get_by_role("heading", name="orders").wait_for()
    camera.take(tab, "topic")
    tab.get_by_role("link", name="Messages").click()
    tab.get_by_label("Key, all of it").fill("order-7")
    tab.get_by_role("button", name="Show", exact=True).click()
    tab.get_by_text("Searched all").wait_for()
    rows = tab.get_by_role("table").get_by_role("row")
    assert '"id":207' in rows.nth(1).inner_text().replace(" ", "")
    camera.take(tab, "messages")


def who_wrote_it(tab: Tab, camera: Camera) -> None:
    tab.get_by_role("table").get_by_role("row").nth(1).get_by_role("link", name="51").click()
    tab.get_by_text("checkout").first.wait_for()
    assert "127.0.0.1" in tab.get_by_role("main").inner_text()
    camera.take(tab, "record")


def in_the_dark_and_on_a_telephone(site: Site, chromium: Browser, camera: Camera) -> None:
    dark = chromium.new_context(viewport=NARROW, color_scheme="dark", timezone_id="UTC")
    tab = dark.new_page()
    tab.goto(site.url)
    tab.get_by_role("listitem").filter(has_text="billing").wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    camera.take(tab, "narrow")
    dark.close()
