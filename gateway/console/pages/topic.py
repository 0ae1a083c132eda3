"""One topic: what it holds, what goes into it, who reads it, what holds it back."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from core.ports.console.topics import HeldBack, PartitionRow
from core.security.page_operations import (
    ADD_PARTITIONS,
    DELETE_RECORDS,
    DELETE_TOPIC,
    GROUP_SHOWN,
    PULSARS_TRANSACTION_SHOWN,
    TRANSACTION_SHOWN,
)
from core.transaction.key import TransactionKey, TransactionKind
from core.transaction.shown_ids import shown_id
from core.types import LiveBroker
from gateway.console.api import Page, page
from gateway.console.findings import HIDDEN
from gateway.console.history import SPAN_S
from gateway.console.paging import part_of
from gateway.console.plots import rate_plot
from gateway.console.rendering import link
from gateway.console.topics import find_topic, head_of
from gateway.console.visit import Visit
from gateway.runtime.log.retention import CHECK_CONFIG
from gateway.web.api import Refused

_KAFKA: Final = "kafka"


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, and which broker clients are sent to for it."""

    row: PartitionRow
    leader_id: int
    leader: str | None


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads the topic. to: its own page. kind: in a word. behind: how many offsets; of a
    subscription, messages."""

    name: str
    to: str
    kind: str
    partitions: int
    behind: int
    committed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Hold:
    """An open transaction that holds the topic back. transactional_id: HIDDEN where who looks may
    not see which it is, None where no coordinator knows it."""

    transactional_id: str | None
    held: HeldBack


@page("/topic")
async def topic(visit: Visit) -> Page | Refused:
    """What the topic holds, its partitions, who reads them and what holds them back."""
    found = await find_topic(visit)
    name, reads = found.name, visit.runtime.console.topics
    part = part_of(range(len(found.partition_ids)), visit.number("page", 1, least=1))
    figures, rows, readers, holds = await asyncio.gather(
        reads.figures([name]),
        reads.partitions(name, part.first - 1, part.last - 1),
        _readers(visit, name),
        _holds(visit, name),
    )
    if name not in figures:
        return Refused(404, f"Topic {name} was deleted just now")
    number = visit.number("readers", 1, least=1)
    appended = visit.console.histories.topic(name).get("appended", ())

    def to(page_number: int, readers_number: int) -> str:
        return link("/topic", name=name, page=page_number, readers=readers_number)

    return Page(
        "topic.html",
        {
            "refresh_s": 5,
            "head": head_of(visit, found),
            "topic": found,
            "figures": figures[name],
            "freed_every_s": visit.runtime.configs.broker_int(CHECK_CONFIG) / 1000,
            "plot": rate_plot("Produced", appended, time.time(), SPAN_S),
            "holds": holds,
            "partitions": [_partition(visit, row) for row in rows],
            "part": part,
            "to_partitions": lambda wanted: to(wanted, number),
            "readers": part_of(readers, number),
            "to_readers": lambda wanted: to(part.number, wanted),
            "may_grow": visit.offers(ADD_PARTITIONS, name),
            "may_empty": visit.offers(DELETE_RECORDS, name),
            "may_delete": visit.offers(DELETE_TOPIC, name),
        },
    )


def _partition(visit: Visit, row: PartitionRow) -> Partition:
    leader_id = visit.runtime.cluster.leader_of(row.partition_id)
    return Partition(row, leader_id, _address(visit.runtime.cluster.find(leader_id)))


def _address(broker: LiveBroker | None) -> str | None:
    endpoint = None if broker is None else broker.at(_KAFKA)
    return None if endpoint is None else f"{endpoint.host}:{endpoint.port}"


async def _readers(visit: Visit, name: str) -> list[Reader]:
    """Those that who looks may see, the furthest behind first."""
    readers = visit.console.topics
    groups, subscriptions = await asyncio.gather(
        readers.groups.get(name), readers.subscriptions.get(name)
    )
    found = [
        Reader(
            each.group_id,
            link("/group", id=each.group_id),
            "group",
            each.partitions,
            each.behind,
            each.committed_at,
        )
        for each in groups
        if visit.may(GROUP_SHOWN, each.group_id)
    ]
    found += [
        Reader(
            each.name,
            link("/subscription", topic=name, partition=each.furthest, name=each.name),
            "subscription",
            each.partitions,
            each.backlog,
            None,
        )
        for each in subscriptions
    ]
    return sorted(found, key=lambda each: (-each.behind, each.name))


async def _holds(visit: Visit, name: str) -> list[Hold]:
    return [_hold(visit, each) for each in await visit.runtime.console.topics.held_back(name)]


def _hold(visit: Visit, held: HeldBack) -> Hold:
    if held.transactional_id is None:
        return Hold(None, held)
    is_pulsars = held.protocol == "Pulsar"
    kind = TransactionKind.TXN_ID if is_pulsars else TransactionKind.TRANSACTIONAL_ID
    shown = shown_id(TransactionKey(kind, held.transactional_id))
    may_see = visit.may(PULSARS_TRANSACTION_SHOWN if is_pulsars else TRANSACTION_SHOWN, shown)
    return Hold(shown if may_see else HIDDEN, held)
