"""The settings of each worker: ports, addresses and an id of its own, else what all have.

Pure. That there is room between the ports of two listeners `gateway.config` has seen to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from core.security.listeners import ListenerAddress
from gateway.config import KAFKA, LISTENERS, Endpoint, Settings

Address = TypeVar("Address", Endpoint, ListenerAddress)


def settings_of(settings: Settings, worker: int, bound: Mapping[str, int]) -> Settings:
    """Those of a worker, counted from 0.

    bound: the ports that it had when it last served, by address; where any free port may be taken
    it takes the same again: by its address it has its id, and its clients find it.
    """
    chosen: dict[str, Any] = {"workers": 1, "broker": dict(settings.broker)}
    if settings.broker_id is not None:
        chosen["broker_id"] = settings.broker_id + worker
    if settings.metrics_listen is not None:  # the supervisor's: it asks the workers
        chosen["metrics_listen"] = Endpoint("127.0.0.1", 0)
    named = settings.named_listeners
    if named:
        keys = [each.key for each in settings.listen_addresses(KAFKA)]
        listen = [
            _moved(each.listen, worker, bound.get(key, 0))
            for key, each in zip(keys, named, strict=True)
        ]
        told = [_moved(each.advertised, worker) for each in named if each.advertised is not None]
        chosen["broker"]["listeners"] = ",".join(map(str, listen))
        if told:
            chosen["broker"]["advertised.listeners"] = ",".join(map(str, told))
    for listener, fields in LISTENERS.items():
        if listener == KAFKA and named:
            continue
        for field in filter(None, (fields.listen, fields.advertise)):
            endpoint: Endpoint | None = getattr(settings, field)
            if endpoint is not None:
                free = bound.get(listener, 0) if field == fields.listen else 0
                chosen[field] = _moved(endpoint, worker, free)
    return settings.model_copy(update=chosen)


def _moved(address: Address, worker: int, free: int = 0) -> Address:
    """The worker's. free: its port where the address leaves that open."""
    return replace(address, port=address.port + worker if address.port else free)


def as_json(settings: Settings) -> dict[str, Any]:
    """What was set, as people write it; `Settings(**…)` reads it."""
    chosen = {name: getattr(settings, name) for name in settings.model_fields_set}
    values: dict[str, Any] = json.loads(json.dumps(chosen, default=str))
    return values
