"""One request for a page: what it asks, who asks, and what that one may do.

Knows no page.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from core.security.operations import Requirement
from core.security.page_operations import PULSARS_TRANSACTION_SHOWN, TRANSACTION_SHOWN
from core.security.principal import ANONYMOUS
from core.transaction.key import TransactionKey
from core.transaction.shown_ids import shown_id
from gateway.runtime.rights import RefusalObserver, Rights, rights_of
from gateway.web.call import MAX_BODY_BYTES, Call, ClientError
from gateway.web.introductions import HEADER

if TYPE_CHECKING:
    from core.security.acls import AliasOf, ResourceType
    from gateway.config import Settings
    from gateway.console.history import Histories
    from gateway.console.records.room import RecordRoom
    from gateway.console.rendering import Rendering
    from gateway.console.shared import Overview, Topics
    from gateway.runtime.runtime import Runtime
    from gateway.web.peers import Peers

_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
NamedByClient = Callable[["ResourceType", str, str], str]
"""Of what kind, in which topic (or the topic itself), and its name."""
READ_ONLY = "The page only shows things here: start the broker with --console-write to change them"


@dataclass(frozen=True, slots=True)
class Console:
    """What pages may ask. is_guarded: whether whoever asks has logged in. alias_of: what Pulsar's
    clients call that which Kafka's call so. named_by_client: what ACLs call that which Pulsar's
    clients call so."""

    runtime: Runtime
    settings: Settings
    rendering: Rendering
    histories: Histories
    overview: Overview
    records: RecordRoom
    topics: Topics
    peers: Peers
    on_refused: RefusalObserver
    is_guarded: bool
    alias_of: AliasOf
    named_by_client: NamedByClient

    @property
    def is_writable(self) -> bool:
        """Whether anything may be changed by a page; what, is up to the rights of who asks."""
        return self.is_guarded or self.settings.console_write


class Form:
    """What was filled in, as it came."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def __contains__(self, name: object) -> bool:
        return any(name == each for each, _ in self._pairs)

    def text(self, name: str, default: str = "") -> str:
        """The first field of that name."""
        return next((value for each, value in self._pairs if each == name), default)

    def all(self, name: str) -> list[str]:
        """All fields of that name."""
        return [value for each, value in self._pairs if each == name]

    def number(self, name: str) -> int:
        """Raises ClientError where it is no whole number."""
        return _number(name, self.text(name))


class Visit:
    """What a page's handler is given. needs: of `PAGES`; nothing else may be asked for."""

    def __init__(self, call: Call[Console], needs: tuple[Requirement, ...]) -> None:
        self.call = call
        self._needs = needs

    @property
    def console(self) -> Console:
        """What it may ask."""
        return self.call.services

    @property
    def runtime(self) -> Runtime:
        """The broker's parts."""
        return self.call.services.runtime

    # --- what is asked ---

    def text(self, name: str, default: str = "") -> str:
        """Of the query: names of topics, groups and so on, which may be anything, are in it."""
        return str(self.call.request.query_params.get(name, default))

    def needed(self, name: str) -> str:
        """The same where there must be one. Raises ClientError."""
        found = self.call.request.query_params.get(name)
        if found is None:
            raise ClientError(400, f"The address lacks ?{name}=…")
        return str(found)

    def number(self, name: str, default: int, least: int = 0, most: int = 2**63 - 1) -> int:
        """Of the query, brought between both bounds. Raises ClientError."""
        found = self.call.request.query_params.get(name)
        return default if not found else min(max(_number(name, found), least), most)

    async def form(self, most_bytes: int = MAX_BODY_BYTES) -> Form:
        """What was filled in. Raises ClientError."""
        body = await self.call.body(most_bytes)
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=2000)
        except ValueError as error:
            raise ClientError(400, f"The form cannot be read: {error}") from None
        return Form(pairs)

    # --- who asks ---

    @cached_property
    def _rights(self) -> tuple[Rights, ...]:
        console = self.console
        return rights_of(console.runtime.acls, console.on_refused, self.call.caller)

    def may(self, requirement: Requirement, name: str = "") -> bool:
        """Whether who asks may do it; nothing is noted. name: of the resource."""
        assert requirement in self._needs, "PAGES says what a page asks for"
        if not self.console.runtime.acls.is_on:
            return True
        return all(each.still_may(requirement, name) for each in self._rights)

    def may_see_transaction(self, name: str | None) -> bool:
        """Whether who asks may know of a transaction. name: its id, as the views have it: what
        looks like a TxnID is taken for Pulsar's; None where nobody knows it."""
        key = None if name is None else TransactionKey.read_pulsar(name)
        if key is not None:
            return self.may(PULSARS_TRANSACTION_SHOWN, shown_id(key))
        return self.may(TRANSACTION_SHOWN, name or "")

    def require(self, requirement: Requirement, name: str = "") -> None:
        """Raises ClientError where who asks may not; the log is told."""
        assert requirement in self._needs, "PAGES says what a page asks for"
        if not self.console.runtime.acls.is_on:
            return
        what = f"{self.call.request.method} {self.call.request.url.path}"
        if not all(each.may(requirement, name, what) for each in self._rights):
            right = requirement.rights[-1]
            raise ClientError(
                403,
                f"{self.call.caller.principal} may not {right.operation.value} "
                f"{right.resource_type.value}{f' {name}' if name else ''}: no ACL allows it",
            )

    def offers(self, requirement: Requirement, name: str = "") -> bool:
        """Whether a change is offered to who asks."""
        return self.console.is_writable and self.may(requirement, name)

    @property
    def is_of_broker(self) -> bool:
        """Whether another broker asks, for the sake of who asks there: `Guard` or `Door` have read
        what it says."""
        return HEADER in self.call.request.headers

    def require_change(self, requirement: Requirement, name: str = "") -> None:
        """As `require`, of a change that a page is about to offer. Raises ClientError also where
        nothing may be changed at all."""
        self.check_writable()
        self.require(requirement, name)

    def check_writable(self) -> None:
        """Raises ClientError where nothing may be changed at all."""
        if not self.console.is_writable:
            raise ClientError(403, READ_ONLY)

    def check_change(self) -> None:
        """Raises ClientError where nothing may be changed at all, or a browser does not say which
        page asks for it."""
        if self.call.request.url.path not in ("/login", "/logout"):
            self.check_writable()
        headers = self.call.request.headers
        if not self.is_of_broker and "sec-fetch-site" not in headers and "origin" not in headers:
            raise ClientError(403, "Nothing says that a page of this site asks for this change")

    def context(self) -> dict[str, Any]:
        """What every template is given."""
        console, principal = self.console, self.call.caller.principal
        # Who asks for the form to log in by has not been asked who he is.
        is_in = console.is_guarded and principal != ANONYMOUS
        return {
            "visit": self,
            "has_pages": is_in or not console.is_guarded,
            "user": str(principal) if is_in else None,
            "asks_rights": self.runtime.acls.is_on,
            "is_writable": console.is_writable,
            "broker_id": self.runtime.cluster.broker_id,
        }


def _number(name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text.strip()):
        raise ClientError(400, f"{name}: '{text[:100]}' is no whole number")
    return int(text)
