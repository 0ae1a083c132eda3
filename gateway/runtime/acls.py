"""ACLs: the rules in force, kept up to date, and the changes that administrators ask for.

A change counts at every broker within a second, news lost or not. With the database away the last
rules stay in force: nobody's rights grow. Core has the rules; this knows no wire and no SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from core.group.expressions import Viewer
from core.ports.log import StoreUnavailable
from core.security.acl_changes import AclBindingFilter, check_binding, check_filter
from core.security.acls import (
    WILDCARD,
    AclBinding,
    AclRules,
    AliasOf,
    Operation,
    ResourceType,
    read_super_users,
)
from core.security.principal import Principal
from gateway.runtime.users import shown
from gateway.runtime.watched import LOOK_AGAIN_S, Watched

if TYPE_CHECKING:
    from core.errors import Refusal
    from core.ports.acls import AclStore, StoredAcls
    from core.ports.watched import RowKey
    from gateway.runtime.topics.configs import Configs

log = structlog.get_logger(__name__)

_MANY: Final = 1000
"""Changes at once that are worked in beside the event loop."""


class Acls:
    """The ACLs of the cluster. One per process; without an authorizer nothing is read.

    alias_of: see AclRules. find_admins: gives bindings that hold without rows, those of Pulsar's
    tenants; raises StoreUnavailable.
    """

    def __init__(
        self,
        store: AclStore,
        configs: Configs,
        alias_of: AliasOf = lambda *_: None,
        find_admins: Callable[[], Awaitable[Iterable[AclBinding]]] | None = None,
    ) -> None:
        self._store = store
        self._find_admins = find_admins
        self._admins: frozenset[AclBinding] = frozenset()
        self._are_readable = False  # before they are read, only super users may do anything
        self.is_on: Final = configs.broker_text("authorizer.class.name") != ""
        super_users = read_super_users(configs.broker_text("super.users")) | {
            str(Principal(role)) for role in configs.broker_list("superUserRoles")
        }
        self._nothing: Final = AclRules(super_users=super_users)
        self._readable = AclRules(  # those of what could be read
            super_users=super_users,
            allow_everyone_if_no_acl_found=configs.broker_bool("allow.everyone.if.no.acl.found"),
            alias_of=alias_of,
        )
        self._rules = self._nothing
        self._stored: Watched[AclBinding] = Watched("acls", store.read, self._take)
        self._on_change: list[Callable[[], None]] = []

    @property
    def rules(self) -> AclRules:
        """Those in force. Another object whenever they change; before they are read, only super
        users may do anything."""
        return self._rules

    def seen_alike(self, viewer: Viewer) -> Viewer:
        """One who may know of the same topics: the same for all hosts where no rule names any."""
        is_of_hosts = self._rules.is_of_hosts(viewer.principal, ResourceType.TOPIC)
        return viewer if is_of_hosts else Viewer(viewer.principal, WILDCARD)

    def may_see(self, viewer: Viewer, topic: str) -> bool:
        """Whether somebody may know of a topic."""
        asked = (viewer.principal, viewer.host, Operation.DESCRIBE, ResourceType.TOPIC, topic)
        return not self.is_on or self._rules.authorize(*asked).is_allowed

    def watch(self, on_change: Callable[[], None]) -> None:
        """on_change: called when they differ."""
        self._on_change.append(on_change)

    # --- reading ---

    async def load(self) -> None:
        """Reads them, if anybody asks for them. Raises StoreUnavailable."""
        if self.is_on:
            await self.look_at_admins()
            await self.refresh()

    def invalidate(self) -> None:
        """They may have changed, at any broker: makes `run` look at once."""
        self._stored.invalidate()

    def forget(self) -> None:
        """The database has another history: they are compared with what is there, not by their
        version."""
        self._stored.forget()

    async def refresh(self) -> None:
        """Reads what has changed, by a read that begins after this call; callers share it. Raises
        StoreUnavailable."""
        await self._stored.refresh()

    async def _take(self, before: StoredAcls, found: StoredAcls) -> None:
        added = [each for key, each in found.rows.items() if key not in before.rows]
        removed = [each for key, each in before.rows.items() if key not in found.rows]
        change = self._readable.changed
        if len(added) + len(removed) > _MANY:
            readable = await asyncio.to_thread(change, found.version, added, removed)
        else:
            readable = change(found.version, added, removed)
        if found.unreadable and not before.unreadable:
            log.error(
                "acls_unreadable",
                rows=found.unreadable,
                what_happens="only super users may do anything",
                what_to_do="correct the rows of table acl, or run the version that wrote them",
            )
        self._readable = readable
        self._are_readable = not found.unreadable
        self._put_in_force()

    async def look_at_admins(self) -> None:
        """What holds without rows may have changed. Raises StoreUnavailable."""
        if self.is_on and self._find_admins is not None:
            admins = frozenset(await self._find_admins())
            if admins != self._admins:
                self._admins = admins
                self._put_in_force()

    def _put_in_force(self) -> None:
        rules = self._readable
        if self._admins:
            rules = rules.changed(rules.version, self._admins)
        # One of those that nobody can read may forbid.
        self._rules = rules if self._are_readable else self._nothing
        for on_change in self._on_change:
            on_change()

    # --- what administrators ask for ---

    async def describe(self, asked: AclBindingFilter) -> Sequence[AclBinding] | Refusal:
        """Those that the filter means. Raises StoreUnavailable."""
        if refusal := check_filter(asked):
            return refusal
        await self.refresh()
        return [each for each in self._stored.rows.values() if asked.matches(each)]

    async def create(
        self, bindings: Sequence[AclBinding], *, principal: Principal, peer: str
    ) -> Sequence[Refusal | None]:
        """Makes those that can be made; each one's answer, None stands for success. principal,
        peer: who asks, for the log. Raises StoreUnavailable."""
        answers = [check_binding(each) for each in bindings]
        wanted = [each for each, refusal in zip(bindings, answers, strict=True) if refusal is None]
        made: set[AclBinding] = set()
        if wanted:
            try:
                made = await self._store.create(wanted)
            finally:
                self.invalidate()  # also if the outcome of the commit is unknown
            await self._stored.refresh_quietly()
        for each in made:
            _note("created", each, principal, peer)
        return answers

    async def delete(
        self, filters: Sequence[AclBindingFilter], *, principal: Principal, peer: str
    ) -> Sequence[Sequence[AclBinding] | Refusal]:
        """Deletes what each filter means; what that was, or why it means nothing. What two filters
        mean is in both answers. Raises StoreUnavailable."""
        refusals = [check_filter(each) for each in filters]
        await self.refresh()
        there = self._stored.rows
        found: list[dict[RowKey, AclBinding]] = [
            {}
            if refusal
            else {key: binding for key, binding in there.items() if asked.matches(binding)}
            for asked, refusal in zip(filters, refusals, strict=True)
        ]
        keys = set().union(*found)
        gone: set[RowKey] = set()
        if keys:
            try:
                gone = await self._store.delete(keys)
            finally:
                self.invalidate()
            await self._stored.refresh_quietly()
        for key in gone:
            _note("deleted", there[key], principal, peer)
        return [
            refusal or [binding for key, binding in meant.items() if key in gone]
            for refusal, meant in zip(refusals, found, strict=True)
        ]

    # --- in the background ---

    async def run(self) -> None:
        """Looks for changes, until cancelled; sleeps where there is no authorizer."""
        if not self.is_on:
            await asyncio.Event().wait()
        await self._stored.run()

    async def run_admins(self) -> None:
        """The same for what holds without rows."""
        if not self.is_on:
            await asyncio.Event().wait()
        while True:
            try:
                await self.look_at_admins()
            except StoreUnavailable as error:
                log.debug("admins_not_read", reason=str(error))
            await asyncio.sleep(LOOK_AGAIN_S)


def _note(change: str, binding: AclBinding, principal: Principal, peer: str) -> None:
    log.info(
        "acl_changed",
        change=change,
        acl=shown(binding.text),
        principal=shown(str(principal)),
        peer=peer,
    )
