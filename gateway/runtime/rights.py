"""What one client may do: decisions by ACLs, remembered, refusals noted.

Does not know which request asks for what (`core.security`), nor how a refusal is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from core.security.acls import (
    CLUSTER_NAME,
    AclBinding,
    AclRules,
    Decision,
    Operation,
    ResourceType,
    Standing,
)
from core.security.operations import Requirement, Right, Without
from gateway.runtime.users import shown

if TYPE_CHECKING:
    from core.security.principal import Caller, Principal
    from gateway.runtime.acls import Acls

log = structlog.get_logger(__name__)

_REMEMBERED: Final = 20_000
"""Decisions of a connection; beyond it all are forgotten."""
LONGEST_REMEMBERED: Final = 512
"""Characters of a name. Nobody shall fill memory with names that he makes up."""

RefusalObserver = Callable[[str, str], None]
"""Called with the request's name and the operation for each refusal."""


class Rights:
    """Those of one principal at one host.

    host: an address as Java writes it; ACLs are compared with it. Decisions count as long as the
    rules are the same object.
    """

    __slots__ = ("_acls", "_decided", "_host", "_observe", "_principal", "_rules")

    def __init__(
        self, acls: Acls, principal: Principal, host: str, observe: RefusalObserver
    ) -> None:
        self._acls = acls
        self._principal = principal
        self._host = host
        self._observe = observe
        self._rules: AclRules = acls.rules
        self._decided: dict[tuple[Requirement, str], Decision] = {}

    @property
    def rules(self) -> AclRules:
        """Those in force. Another object whenever they change."""
        return self._acls.rules

    def may(self, requirement: Requirement, name: str, api: str) -> bool:
        """Whether the client may do it. name: of the resource, where it is not the cluster. api:
        what is asked, for the log: it has a line for each refusal."""
        decision = self.decide(requirement, name)
        if not decision.is_allowed and requirement.without is not Without.LEFT_OUT:
            self._note(requirement.rights[-1], name, api, decision)
        return decision.is_allowed

    def still_may(self, requirement: Requirement, name: str) -> bool:
        """The same of what is going on; nothing is noted."""
        return self.decide(requirement, name).is_allowed

    def decide(self, requirement: Requirement, name: str) -> Decision:
        """The same, and by which rule."""
        self._forget_if_changed()
        key = (requirement, name)
        decision = self._decided.get(key)
        if decision is None:
            if len(self._decided) >= _REMEMBERED:
                self._decided.clear()
            decision = self._decided_anew(requirement, name)
            if len(name) <= LONGEST_REMEMBERED:
                self._decided[key] = decision
        return decision

    def _forget_if_changed(self) -> None:
        rules = self._acls.rules
        if rules is not self._rules:
            self._forget(rules)

    def _forget(self, rules: AclRules) -> None:
        self._rules = rules
        self._decided.clear()

    def _decided_anew(self, requirement: Requirement, name: str) -> Decision:
        """By the first of the rights that is there, else as the last says."""
        decision: Decision
        for right in requirement.rights:
            if right.is_on_any:
                decision = self._rules.authorize_by_resource_type(
                    self._principal, self._host, right.operation, right.resource_type
                )
            elif right.is_if_named:
                decision = self._rules.authorize_unless_named(
                    self._principal, self._host, right.operation, right.resource_type, name
                )
            else:
                decision = self._authorize(right.operation, right.resource_type, name)
                if right.needs_acl and decision.rule is Standing.NO_ACL_FOUND:
                    decision = Decision(False, Standing.NOT_ALLOWED)
            if decision.is_allowed:
                break
        return decision

    def _authorize(self, operation: Operation, kind: ResourceType, name: str) -> Decision:
        if kind is ResourceType.CLUSTER:
            name = CLUSTER_NAME
        return self._rules.authorize(self._principal, self._host, operation, kind, name)

    def _note(self, right: Right, name: str, api: str, decision: Decision) -> None:
        if right.resource_type is ResourceType.CLUSTER:
            name = CLUSTER_NAME
        rule = decision.rule
        log.warning(
            "refused",
            principal=shown(str(self._principal)),
            host=self._host,
            operation=right.operation.value,
            resource=f"{right.resource_type}:{'*' if right.is_on_any else shown(name)}",
            request=api,
            rule=shown(rule.text) if isinstance(rule, AclBinding) else rule.value,
        )
        self._observe(api, right.operation.value)


def rights_of(acls: Acls, observe: RefusalObserver, caller: Caller) -> tuple[Rights, ...]:
    """Those of who asks, and of the proxy that passes it on: both have to have a right."""
    both = (caller.principal, caller.proxy)
    return tuple(Rights(acls, each, caller.host, observe) for each in both if each is not None)
