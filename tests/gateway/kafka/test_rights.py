"""What a connection is told of its rights, and how much of it is remembered."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace
from typing import cast

from core.security.acls import AclRules, ResourceType
from core.security.principal import ANONYMOUS
from gateway.kafka.rights import KafkaRights
from gateway.runtime.acls import Acls


def test_long_names_of_what_need_not_be_there_take_no_memory() -> None:
    acls = cast(Acls, SimpleNamespace(rules=AclRules([])))
    rights = KafkaRights(acls, ANONYMOUS, "127.0.0.1", lambda api, operation: None)
    none = rights.operations(ResourceType.GROUP, "g")
    tracemalloc.start()
    try:
        for number in range(200):
            name = "😀" * 30_000 + str(number)
            assert rights.operations(ResourceType.GROUP, name) == none
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 2_000_000, "of 24 MB"
