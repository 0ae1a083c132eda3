"""Client quotas: those in force, kept up to date, and the changes that administrators ask for.

A change counts at every broker within a second, news lost or not; with the database away those last
read stay. Core has the rules; this knows no wire and no SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from core.quota.changes import Alteration, QuotaFilter, decide_alterations
from core.quota.entities import QuotaEntity, QuotaKey
from core.quota.entities import Quotas as Values
from core.quota.rules import QuotaRules
from gateway.runtime.users import shown
from gateway.runtime.watched import Watched

if TYPE_CHECKING:
    from core.errors import Refusal
    from core.ports.quotas import QuotaStore, StoredQuota, StoredQuotas
    from core.quota.changes import NamedEntity
    from core.security.principal import Principal

log = structlog.get_logger(__name__)

_MANY: Final = 1000
"""Quotas that are worked in beside the event loop."""


class Quotas:
    """The quotas of the cluster. One per process."""

    def __init__(self, store: QuotaStore) -> None:
        self._store = store
        self._stored: Watched[StoredQuota] = Watched("quotas", store.read, self._take)
        self._rules = QuotaRules({})
        self._on_change: list[Callable[[], None]] = []

    @property
    def rules(self) -> QuotaRules:
        """Those in force. Another object whenever they change."""
        return self._rules

    def watch(self, on_change: Callable[[], None]) -> None:
        """on_change: called when they differ."""
        self._on_change.append(on_change)

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

    async def run(self) -> None:
        """Looks for changes, until cancelled."""
        await self._stored.run()

    async def _take(self, before: StoredQuotas, found: StoredQuotas) -> None:
        if found.unreadable and not before.unreadable:
            log.error(
                "quotas_unreadable",
                rows=found.unreadable,
                what_happens="they limit nobody",
                what_to_do="correct the rows of table client_quota, or run the version that wrote "
                "them",
            )
        if len(found.rows) > _MANY:
            self._rules = await asyncio.to_thread(_rules_of, found.rows.values())
        else:
            self._rules = _rules_of(found.rows.values())
        for on_change in self._on_change:
            on_change()

    # --- what administrators ask for ---

    async def describe(self, asked: QuotaFilter) -> Mapping[QuotaEntity, Values]:
        """Those that the filter means. Raises StoreUnavailable."""
        await self.refresh()
        return {entity: values for entity, values in self._rules if asked.matches(entity)}

    async def alter(
        self,
        alterations: Sequence[Alteration],
        *,
        only_validate: bool,
        principal: Principal,
        peer: str,
    ) -> Mapping[NamedEntity, Refusal | None]:
        """Changes those that can be changed; each entity's answer, None stands for success.
        principal, peer: who asks, for the log. Raises StoreUnavailable."""
        changes, answers = decide_alterations(alterations)
        if only_validate or not (changes.upserts or changes.deletions):
            return answers
        changed: Sequence[StoredQuota] = ()
        try:
            changed = await self._store.alter(changes)
        finally:
            self.invalidate()  # also if the outcome of the commit is unknown
        for each in changed:
            _note(each, principal, peer)
        # Whoever has been told of the change is limited by it here at once.
        await self._stored.refresh_quietly()
        return answers


def _rules_of(stored: Iterable[StoredQuota]) -> QuotaRules:
    quotas: dict[QuotaEntity, dict[QuotaKey, float]] = {}
    for each in stored:
        assert each.value is not None, "what is stored has a value"
        quotas.setdefault(each.entity, {})[each.key] = each.value
    return QuotaRules(quotas)


def _note(changed: StoredQuota, principal: Principal, peer: str) -> None:
    log.info(
        "quota_changed",
        change="deleted" if changed.value is None else "set",
        entity=", ".join(
            f"{kind.value} {shown(name) or '<default>'}" for kind, name in changed.entity
        ),
        quota=changed.key.value,
        value=changed.value,
        principal=shown(str(principal)),
        peer=peer,
    )
