"""The first page, in a browser: what there is, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.gateway.console.conftest import Site, StartSite
from tests.gateway.console.scene import later, shop

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab


def test_it_shows_what_there_is(site: Site, tab: Tab) -> None:
    tab.goto(site.url)
    assert tab.title() == "Overview · Penstock"
    assert tab.get_by_role("heading", name="Brokers").is_visible()
    row = tab.get_by_role("row", name="live")
    assert f"127.0.0.1:{site.gateway.port}" in row.inner_text()
    tab.get_by_text("Produced: 0 records/s").wait_for()  # two samples have been taken


def test_it_says_that_the_broker_has_gone(start_site: StartSite, tab: Tab) -> None:
    site = start_site()
    tab.goto(site.url)
    assert not tab.locator("#away").is_visible()
    site.gateway.kill()
    tab.get_by_text("does not answer since").wait_for()


def test_it_says_who_is_stuck_and_why(start_site: StartSite, tab: Tab) -> None:
    site = start_site()
    with shop(site):
        tab.goto(site.url)
        assert tab.get_by_text("Nothing that is seen from here.").is_visible()
        later(site, 250)
        finding = tab.get_by_role("listitem").filter(has_text="billing")
        finding.wait_for()
        said = finding.inner_text()
        assert "billing has read nothing of orders-3 for 4 min" in said
        assert "transaction payments-7 of 127.0.0.1 has held its offset 60 open for 4 min" in said
        assert "5 offsets wait there" in said
        link = finding.get_by_role("link", name="Look at the transaction")
        assert link.get_attribute("href") == "/transaction?id=payments-7"
        assert tab.get_by_text("Transaction payments-7 of 127.0.0.1 is open for 4 min").is_visible()
