"""The first page, in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.gateway.console.conftest import Site, StartSite

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab


def test_it_shows_what_there_is(site: Site, tab: Tab) -> None:
    tab.goto(site.url)
    assert tab.title() == "Overview · Penstock"
    assert tab.get_by_role("heading", name="Brokers").is_visible()
    row = tab.get_by_role("row", name="live")
    assert f"127.0.0.1:{site.gateway.port}" in row.inner_text()


def test_it_says_that_the_broker_has_gone(start_site: StartSite, tab: Tab) -> None:
    site = start_site()
    tab.goto(site.url)
    assert not tab.locator("#away").is_visible()
    site.gateway.kill()
    tab.get_by_text("does not answer since").wait_for()
