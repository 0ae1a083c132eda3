"""Tells the functions that applications call in SQL what this broker's settings are.

They ask one row for it, since they cannot ask a broker. It is written when a broker starts and when
its settings change, by whichever does so last: brokers of a cluster need the same. Core has the
settings; this knows no SQL.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import structlog

from core.ports.log import StoreUnavailable
from core.ports.sql_doors import DoorSettings
from core.security.acls import read_super_users
from core.security.principal import ROLE

if TYPE_CHECKING:
    from core.ports.sql_doors import SqlDoorStore
    from gateway.runtime.topics.configs import Configs

log = structlog.get_logger(__name__)

_TRY_AGAIN_S: Final = 1.0


class SqlDoors:
    """The settings of the functions in SQL. One per process."""

    def __init__(self, store: SqlDoorStore, configs: Configs) -> None:
        self._store = store
        self._configs = configs
        self._told: DoorSettings | None = None
        self._wake = asyncio.Event()

    def invalidate(self) -> None:
        """Settings may have changed: makes `run` look at once."""
        self._wake.set()

    def forget(self) -> None:
        """The database has another history: what was written may not be there."""
        self._told = None
        self.invalidate()

    async def tell(self) -> None:
        """Writes this broker's settings, unless they are what it has told before. Raises
        StoreUnavailable."""
        await self._configs.ensure_loaded()
        settings = _settings(self._configs)
        if settings == self._told:
            return
        before = await self._store.put(settings)
        self._told = settings
        if before is not None:
            was = asdict(before)
            changed = {name: each for name, each in asdict(settings).items() if each != was[name]}
            log.info("sql_door_changed", **changed, was={name: was[name] for name in changed})

    async def run(self) -> None:
        """Tells of changes, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.tell()
            except StoreUnavailable as error:
                log.debug("sql_door_not_written", reason=str(error))
                self._wake.set()
                await asyncio.sleep(_TRY_AGAIN_S)


def _settings(configs: Configs) -> DoorSettings:
    super_users = read_super_users(configs.broker_text("super.users"))
    return DoorSettings(
        asks_rights=configs.broker_text("authorizer.class.name") != "",
        allows_without_acl=configs.broker_bool("allow.everyone.if.no.acl.found"),
        super_users=tuple(sorted(each for each in super_users if each.startswith(f"{ROLE}:"))),
        max_message_bytes=configs.broker_int("message.max.bytes"),
        is_compacted="compact" in configs.broker_list("log.cleanup.policy"),
        timestamp_before_max_ms=configs.broker_int("log.message.timestamp.before.max.ms"),
        timestamp_after_max_ms=configs.broker_int("log.message.timestamp.after.max.ms"),
        max_transaction_bytes=configs.broker_int("penstock.sql.transaction.max.bytes"),
        max_metadata_bytes=configs.broker_int("offset.metadata.max.bytes"),
    )
