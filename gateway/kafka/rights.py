"""The rights of one connection's client, and what it is told of them (KIP-430)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.security.acl_changes import SUPPORTED_OPERATIONS
from gateway.kafka.acl_codes import operation_bits
from gateway.runtime.rights import LONGEST_REMEMBERED, RefusalObserver, Rights

if TYPE_CHECKING:
    from core.security.acls import AclRules, ResourceType
    from core.security.principal import Principal
    from gateway.runtime.acls import Acls

_REMEMBERED: Final = 20_000
"""Resources of a connection whose operations it was told; beyond it all are forgotten."""


class KafkaRights(Rights):
    """See Rights."""

    __slots__ = ("_operations",)

    def __init__(
        self, acls: Acls, principal: Principal, host: str, observe: RefusalObserver
    ) -> None:
        super().__init__(acls, principal, host, observe)
        self._operations: dict[tuple[ResourceType, str], int] = {}

    def operations(self, kind: ResourceType, name: str) -> int:
        """The operations that the client may do there, as bits (KIP-430)."""
        self._forget_if_changed()
        key = (kind, name)
        bits = self._operations.get(key)
        if bits is None:
            bits = operation_bits(
                [
                    each
                    for each in SUPPORTED_OPERATIONS[kind]
                    if self._authorize(each, kind, name).is_allowed
                ]
            )
            if len(name) <= LONGEST_REMEMBERED:
                if len(self._operations) >= _REMEMBERED:
                    self._operations.clear()
                self._operations[key] = bits
        return bits

    def _forget(self, rules: AclRules) -> None:
        super()._forget(rules)
        self._operations.clear()
