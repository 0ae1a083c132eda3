"""Users, ACLs and quotas, in a browser; what is changed there, as clients see it."""

from __future__ import annotations

import base64
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import psycopg
import pytest
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.gateway.console.conftest import (
    GUARDED,
    WITHIN_S,
    Site,
    StartSite,
    bearer,
    grant,
    log_in,
)
from tests.gateway.console.test_door import own_address, raw

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

SECRET_WORD = "correct horse <battery> &staple"


def basic(user: str, password: str) -> dict[str, str]:
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {text}"}


def acls_of(site: Site, principal: str) -> list[str]:
    admin = AdminClient({"bootstrap.servers": site.bootstrap})
    asked = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        principal,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    found = admin.describe_acls(asked).result(WITHIN_S)
    return sorted(f"{each.operation.name} {each.name}" for each in found)


def test_where_it_is_off_it_says_what_turns_it_on(site: Site, tab: Tab) -> None:
    tab.goto(f"{site.url}/security")
    main = tab.locator("main").inner_text()
    assert "authenticationEnabled=true" in main
    assert "authorizer.class.name=" in main
    for path in ("acls", "may", "why"):
        tab.goto(f"{site.url}/security/{path}")
        assert "No ACL counts here" in tab.locator("main").inner_text()
    assert site.ask("/security/acls/create")[0] == 409


def test_a_user_is_added_given_another_password_and_deleted(guarded: Site, tab: Tab) -> None:
    log_in(tab, guarded, "admin")
    tab.goto(f"{guarded.url}/security/users")
    tab.get_by_role("link", name="Add a user…").click()
    tab.get_by_label("Name").fill("<dave>")
    tab.get_by_label("Password").fill(SECRET_WORD)
    tab.get_by_label("Once more").fill(SECRET_WORD)
    tab.get_by_role("button", name="Set the password").click()
    assert "<dave> may log in" in tab.get_by_role("status").inner_text()
    row = tab.get_by_role("row", name="<dave>")
    assert "SCRAM-SHA-256 (8,192), SCRAM-SHA-512 (8,192)" in row.inner_text()
    assert guarded.ask("/", headers=basic("<dave>", SECRET_WORD))[0] == 200
    assert SECRET_WORD not in tab.content()
    row.get_by_role("link", name="password…").click()
    tab.get_by_label("Password").fill("another")
    tab.get_by_label("Once more").fill("other")
    tab.get_by_role("button", name="Set the password").click()
    assert "nothing was changed" in tab.get_by_role("alert").inner_text()
    assert guarded.ask("/", headers=basic("<dave>", SECRET_WORD))[0] == 200
    # Who adds a user gives nobody else another password.
    form = {"name": "<dave>", "new": "1", "password": "typo", "again": "typo"}
    status, _, text = guarded.ask("/security/users/set", form, bearer("admin"))
    assert (status, "There is a user" in text) == (409, True)
    assert guarded.ask("/", headers=basic("<dave>", SECRET_WORD))[0] == 200
    tab.get_by_role("link", name="Back").click()
    tab.get_by_label("Once more").wait_for()
    tab.goto(f"{guarded.url}/security/users?q=DAVE")
    tab.get_by_role("link", name="delete…").click()
    tab.get_by_role("button", name="Delete").click()
    assert "Deleted user <dave>" in tab.get_by_role("status").inner_text()
    deadline = time.monotonic() + WITHIN_S
    while guarded.ask("/", headers=basic("<dave>", SECRET_WORD))[0] != 401:
        assert time.monotonic() < deadline
    assert SECRET_WORD not in guarded.gateway.log()


def test_a_password_goes_over_no_wire_in_the_clear(start_site: StartSite) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback's")
    site = start_site(*(f"--override={each}" for each in GUARDED), http_host="0.0.0.0")
    admin = bearer("admin")["authorization"]
    for method in ("GET", "POST"):
        request = (
            f"{method} /security/users/set HTTP/1.1\r\nhost: {address}:{site.port}\r\n"
            f"origin: http://{address}:{site.port}\r\nauthorization: {admin}\r\n"
            "content-length: 0\r\nconnection: close\r\n\r\n"
        )
        answered = raw(site.port, request, address)
        assert b" 403 " in answered.splitlines()[0]
        assert b"without TLS" in answered


def test_an_acl_is_created_explained_and_deleted(guarded: Site, tab: Tab) -> None:
    log_in(tab, guarded, "admin")

    def why() -> str:
        tab.goto(f"{guarded.url}/security/why")
        tab.get_by_label("Principal").fill("User:erin")
        tab.get_by_label("Request").select_option("Kafka Produce")
        tab.get_by_label("Topic", exact=True).fill("bills-1")
        tab.get_by_role("button", name="Explain").click()
        return tab.get_by_role("row", name="WRITE on topic").inner_text()

    assert "refused" in why()
    assert "no ACL allows it" in why()
    tab.goto(f"{guarded.url}/security/acls")
    tab.get_by_role("link", name="Create an ACL…").click()
    tab.get_by_label("Principal").fill("User:erin")
    tab.get_by_label("Operation").select_option("WRITE")
    tab.get_by_label("Named").fill("bills-")
    tab.get_by_label("The name is meant").select_option("PREFIXED")
    tab.get_by_role("button", name="Create").click()
    assert "ALLOW User:erin" in tab.get_by_role("status").inner_text()
    assert acls_of(guarded, "User:erin") == ["WRITE bills-"]
    assert "allowed" in why()
    assert "ALLOW User:erin from * WRITE on TOPIC:PREFIXED:bills-" in why()
    transactional = tab.get_by_role("row", name="WRITE on transactional id").inner_text()
    assert "name it above" in transactional
    tab.goto(f"{guarded.url}/security/may")
    tab.get_by_label("Principal").fill("User:erin")
    with tab.expect_navigation():
        tab.get_by_role("button", name="Show").click()
    row = tab.get_by_role("row", name="topic bills-…")
    may, may_not = (each.inner_text() for each in row.get_by_role("cell").all()[1:])
    rule = "ALLOW User:erin from * WRITE on TOPIC:PREFIXED:bills-"
    assert may.splitlines() == [f"DESCRIBE {rule}", f"WRITE {rule}"]
    assert "READ" in may_not
    tab.goto(f"{guarded.url}/security/acls?q=erin")
    tab.get_by_role("link", name="delete…").click()
    tab.get_by_role("button", name="Delete").click()
    assert "Deleted: ALLOW User:erin" in tab.get_by_role("status").inner_text()
    assert acls_of(guarded, "User:erin") == []


def test_a_request_of_pulsars_is_explained_by_pulsars_names(guarded: Site) -> None:
    grant(guarded, "rose", AclOperation.READ, ResourceType.TOPIC, "roses")
    only_carol = "pulsar-subscription:persistent://public/default/:only-carol"
    grant(guarded, "carol", AclOperation.READ, ResourceType.GROUP, only_carol)

    def why(**asked: str) -> list[str]:
        query = urlencode({"principal": "User:rose", "request": "Pulsar SUBSCRIBE", **asked})
        _, _, page = guarded.ask(f"/security/why?{query}", headers=bearer("admin"))
        assert "AuthorizationError" in page
        return re.findall(r'<td><span class="tag[^"]*">([^<]+)', page)

    for topic in ("roses", "persistent://public/default/roses", "roses-partition-3"):
        assert why(topic=topic, group="only-carol") == ["allowed", "refused"]
        assert why(topic=topic, group="for-all") == ["allowed", "allowed"]
        assert why(topic=topic) == ["allowed", "not asked"]
    assert why(topic="persistent://public/other/roses", group="for-all")[0] == "refused"
    assert why(topic="roses", group=only_carol) == ["allowed", "refused"]


def test_a_super_user_is_said_to_be_one(guarded: Site) -> None:
    status, _, text = guarded.ask("/security/may?principal=User:admin", headers=bearer("admin"))
    assert status == 200
    assert "It is a super user" in text
    assert guarded.ask("/security/may?principal=admin", headers=bearer("admin"))[0] == 400


def test_a_quota_is_set_and_removed(guarded: Site, tab: Tab) -> None:
    log_in(tab, guarded, "admin")
    tab.goto(f"{guarded.url}/security/quotas")
    tab.get_by_role("link", name="Set a quota…").click()
    tab.get_by_label("User", exact=True).fill("<frank>")
    tab.get_by_label("the default of client ids").check()
    tab.get_by_label("What").select_option("producer_byte_rate")
    tab.get_by_label("Limit").fill("1048576")
    tab.get_by_role("button", name="Set").click()
    row = tab.get_by_role("row", name="<frank>")
    assert "each that has none of its own" in row.inner_text()
    assert "1.0 MiB" in row.inner_text()
    assert quotas(guarded) == [("<frank>", "<default>", "producer_byte_rate", 1048576.0)]
    row.get_by_role("link", name="remove…").click()
    tab.get_by_role("button", name="Remove").click()
    assert "Removed producer_byte_rate" in tab.get_by_role("status").inner_text()
    assert quotas(guarded) == []
    form = {"user": "x", "key": "producer_byte_rate", "value": "-1"}
    status, _, text = guarded.ask("/security/quotas/set", form, bearer("admin"))
    assert status == 400
    assert "must be greater than 0" in text
    form = {"user": "x", "user_default": "1", "key": "producer_byte_rate", "value": "77"}
    status, _, text = guarded.ask("/security/quotas/set", form, bearer("admin"))
    assert (status, "not of both" in text) == (400, True)
    assert quotas(guarded) == []


def quotas(site: Site) -> list[tuple[object, ...]]:
    assert site.gateway.database_url is not None
    with psycopg.connect(site.gateway.database_url) as connection:
        query = "SELECT user_name, client_id, quota, value FROM penstock.v_quota"
        return connection.execute(query).fetchall()


def test_who_may_only_look_is_offered_no_change(guarded: Site, tab: Tab) -> None:
    grant(guarded, "grace", AclOperation.DESCRIBE, ResourceType.BROKER, "kafka-cluster")
    log_in(tab, guarded, "grace")
    for path in ("users", "acls"):
        tab.goto(f"{guarded.url}/security/{path}")
        assert tab.get_by_role("heading", level=1).is_visible()
        assert tab.get_by_role("alert").count() == 0
        assert tab.get_by_role("link", name="…").count() == 0
        offered = tab.get_by_role("navigation", name="Security").get_by_role("link")
        seen = ["Summary", "Users", "Tokens", "ACLs", "Who may do what", "Why refused?"]
        assert offered.all_inner_texts() == seen
    assert guarded.ask("/security/quotas", headers=bearer("grace"))[0] == 403
    for path in ("users/set", "acls/create", "quotas/set"):
        assert guarded.ask(f"/security/{path}", headers=bearer("grace"))[0] == 403
        assert guarded.ask(f"/security/{path}", {"name": "x"}, bearer("grace"))[0] == 403
    assert guarded.ask("/security/why", headers=bearer("nobody"))[0] == 403
    summary = guarded.ask("/security", headers=bearer("nobody"))[2]
    assert "Super users" not in summary
    assert set(re.findall(r'href="(/security[^"]*)"', summary)) == {"/security", "/security/tokens"}
