"""Users, tokens, ACLs and quotas as they are; who may do what, and why a request is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from core.errors import Refusal
from core.quota.changes import QuotaFilter
from core.security.acl_changes import AclBindingFilter
from core.security.acls import AclBinding, ResourceType
from core.security.explaining import (
    REQUESTS,
    held,
    in_words,
    patterns_of,
    read_principal,
)
from core.security.page_operations import (
    CHANGE_QUOTAS,
    CHANGE_USERS,
    CREATE_ACLS,
    DELETE_ACLS,
    OFFER_ACLS,
    OFFER_QUOTAS,
    OFFER_USERS,
    SEE_ACLS,
    SEE_QUOTAS,
    SEE_TOKEN,
    SEE_TOKENS_OF,
    SEE_USERS,
)
from gateway.console.api import Page, page
from gateway.console.paging import part_of
from gateway.console.rendering import link
from gateway.runtime.rights import Rights
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.quota.entities import QuotaEntity, QuotaKey
    from core.security.acls import Decision
    from core.security.delegation_tokens import DelegationToken
    from core.security.operations import Requirement
    from core.security.principal import Principal
    from core.security.verifier import Verifier
    from gateway.console.visit import Visit

NO_AUTHORIZER: Final = (
    "No ACL counts here: start the brokers with --override authorizer.class.name="
    "org.apache.kafka.metadata.authorizer.StandardAuthorizer (docs/security.md)"
)
_NAMED: Final = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.TRANSACTIONAL_ID: "transactional_id",
    ResourceType.DELEGATION_TOKEN: "token",
    ResourceType.USER: "user",
}
"""The fields of the form in which somebody names a resource, by its type."""
_ANY_HOST: Final = "*"
_PULSAR: Final = "Pulsar"
_TABS: Final = (
    ("/security", "Summary", None),
    ("/security/users", "Users", OFFER_USERS),
    ("/security/tokens", "Tokens", None),
    ("/security/acls", "ACLs", OFFER_ACLS),
    ("/security/quotas", "Quotas", OFFER_QUOTAS),
    ("/security/may", "Who may do what", OFFER_ACLS),
    ("/security/why", "Why refused?", OFFER_ACLS),
)
"""Address, name, and what it takes to be offered it; None: what it shows is up to one's rights."""


class Asked(NamedTuple):
    """One thing that a request asks for, as it is decided. name: of the resource; "" is the
    cluster's. decision: None where the form does not name the resource."""

    requirement: Requirement
    name: str
    decision: Decision | None


@page("/security")
async def security(visit: Visit) -> Page:
    """What is on, and what there is."""
    runtime, configs = visit.runtime, visit.runtime.configs
    acls = await _acls(visit) if visit.may(OFFER_ACLS) and runtime.acls.is_on else None
    users = await runtime.users.describe(None) if visit.may(OFFER_USERS) else None
    quotas = await _quotas(visit) if visit.may(OFFER_QUOTAS) else None
    roles = configs.broker_list("superUserRoles")
    super_users = [configs.broker_text("super.users"), *(f"User:{each}" for each in roles)]
    return _tab(
        visit,
        "security.html",
        {
            "methods": runtime.authentication.methods,
            "is_on": runtime.acls.is_on,
            "no_authorizer": NO_AUTHORIZER,
            "super_users": "; ".join(filter(None, super_users)) if visit.may(OFFER_ACLS) else None,
            "allows_everyone": configs.broker_bool("allow.everyone.if.no.acl.found"),
            "has_tokens": runtime.delegation_tokens.is_on,
            "acls": acls,
            "users": users,
            "quotas": quotas,
        },
    )


@page("/security/users")
async def users(visit: Visit) -> Page:
    """Their names and mechanisms; no secret."""
    visit.require(SEE_USERS)
    search = visit.text("q").strip()
    known: list[tuple[str, Sequence[Verifier]]] = [
        (name, found)
        for name, found in sorted((await visit.runtime.users.describe(None)).items())
        if not isinstance(found, Refusal) and search.lower() in name.lower()
    ]
    return _tab(
        visit,
        "security_users.html",
        {
            "search": search,
            "found": part_of(known, visit.number("page", 1)),
            "is_offered": visit.offers(CHANGE_USERS),
            "to": _to("/security/users", search),
        },
    )


@page("/security/tokens")
async def tokens(visit: Visit) -> Page:
    """Delegation tokens: one's own, and those that one may see; no secret."""

    def may_describe(token: DelegationToken) -> bool:
        return visit.may(SEE_TOKEN, token.token_id) or visit.may(SEE_TOKENS_OF, str(token.owner))

    known = visit.runtime.delegation_tokens
    described = await known.describe(None, may_describe, principal=visit.call.caller.principal)
    rows = [] if isinstance(described, Refusal) else [token for token, _ in described]
    return _tab(
        visit,
        "security_tokens.html",
        {
            "is_on": known.is_on,
            "found": part_of(rows, visit.number("page", 1)),
            "to": _to("/security/tokens", ""),
        },
    )


@page("/security/acls")
async def acls(visit: Visit) -> Page:
    """All of them, Pulsar's permissions among them."""
    visit.require(SEE_ACLS)
    search = visit.text("q").strip()
    rows = await _acls(visit) if visit.runtime.acls.is_on else []
    return _tab(
        visit,
        "security_acls.html",
        {
            "is_on": visit.runtime.acls.is_on,
            "no_authorizer": NO_AUTHORIZER,
            "search": search,
            "found": part_of(
                [
                    each
                    for each in rows
                    if search.lower() in each.principal.lower()
                    or search.lower() in each.name.lower()
                ],
                visit.number("page", 1),
            ),
            "is_creation_offered": visit.offers(CREATE_ACLS),
            "is_deletion_offered": visit.offers(DELETE_ACLS),
            "query_of": query_of,
            "to": _to("/security/acls", search),
        },
    )


@page("/security/quotas")
async def quotas(visit: Visit) -> Page:
    """Whom they are of, and what they limit."""
    visit.require(SEE_QUOTAS)
    return _tab(
        visit,
        "security_quotas.html",
        {
            "found": part_of(await _quotas(visit), visit.number("page", 1)),
            "is_offered": visit.offers(CHANGE_QUOTAS),
            "to": _to("/security/quotas", ""),
        },
    )


@page("/security/may")
async def may(visit: Visit) -> Page:
    """What somebody may do, on all that an ACL of his, or of everybody, is about."""
    visit.require(SEE_ACLS)
    text, host = visit.text("principal").strip(), visit.text("host").strip() or _ANY_HOST
    principal = _principal(text)
    values: dict[str, object] = {
        "is_on": visit.runtime.acls.is_on,
        "no_authorizer": NO_AUTHORIZER,
        "principal": text,
        "host": host,
        "known": await _principals(visit),
        "found": None,
    }
    if principal is not None and visit.runtime.acls.is_on:
        await visit.runtime.acls.refresh()
        rules = visit.runtime.acls.rules
        found = part_of(patterns_of(rules, principal), visit.number("page", 1))
        values |= {
            "found": found,
            "is_super_user": rules.is_super_user(principal),
            "rows": held(rules, principal, host, found.rows),
            "in_words": in_words,
            "to": lambda number: link("/security/may", principal=text, host=host, page=number),
        }
    return _tab(visit, "security_may.html", values)


@page("/security/why")
async def why(visit: Visit) -> Page:
    """Each right that a request would ask for, whether somebody has it, and by which rule."""
    visit.require(SEE_ACLS)
    text, host = visit.text("principal").strip(), visit.text("host").strip() or "127.0.0.1"
    door, _, name = visit.text("request").partition(" ")
    principal = _principal(text)
    asked: list[Asked] | None = None
    if principal is not None and name in REQUESTS.get(door, {}) and visit.runtime.acls.is_on:
        await visit.runtime.acls.refresh()
        asked = [_asked(visit, door, principal, host, each) for each in REQUESTS[door][name]]
    return _tab(
        visit,
        "security_why.html",
        {
            "is_on": visit.runtime.acls.is_on,
            "no_authorizer": NO_AUTHORIZER,
            "principal": text,
            "host": host,
            "request": f"{door} {name}",
            "requests": REQUESTS,
            "is_pulsars": door == _PULSAR,
            "fields": {field: visit.text(field) for field in _NAMED.values()},
            "known": await _principals(visit),
            "asked": asked,
            "in_words": in_words,
        },
    )


def query_of(binding: AclBinding) -> dict[str, str]:
    """An ACL in an address, whose delete page it is."""
    return {
        "type": binding.resource_type.value,
        "name": binding.name,
        "pattern": binding.pattern_type.value,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation.value,
        "permission": binding.permission.value,
    }


def _tab(visit: Visit, template: str, values: dict[str, object]) -> Page:
    """With those of the others that who asks may open."""
    tabs = [(to, name) for to, name, asked in _TABS if asked is None or visit.may(asked)]
    return Page(template, {"tabs": tabs, **values})


def _asked(
    visit: Visit, door: str, principal: Principal, host: str, requirement: Requirement
) -> Asked:
    fields = {_NAMED[r.resource_type] for r in requirement.rights if r.resource_type in _NAMED}
    name = next((found for each in fields if (found := visit.text(each))), "")
    if door == _PULSAR:
        kind = requirement.rights[0].resource_type
        name = visit.console.named_by_client(kind, visit.text("topic").strip(), name)
    is_named = bool(name) or all(
        right.resource_type is ResourceType.CLUSTER or right.is_on_any
        for right in requirement.rights
    )
    rights = Rights(visit.runtime.acls, principal, host, visit.console.on_refused)
    decision = rights.decide(requirement, name)
    # A right on the cluster may be enough, whatever the resource is.
    is_decided = decision.is_allowed and not any(each.is_if_named for each in requirement.rights)
    return Asked(requirement, name, decision if is_named or is_decided else None)


def _principal(text: str) -> Principal | None:
    """Raises ClientError where it is none; None where nothing is asked for."""
    if not text:
        return None
    found = read_principal(text)
    if found is None:
        raise ClientError(400, "Write a principal as User:name or Role:name")
    return found


async def _principals(visit: Visit) -> list[str]:
    """Some of those that ACLs name, to choose from."""
    if not visit.runtime.acls.is_on:
        return []
    return sorted({each.principal for each in await _acls(visit)})[:200]


async def _acls(visit: Visit) -> list[AclBinding]:
    found = await visit.runtime.acls.describe(AclBindingFilter())
    assert not isinstance(found, Refusal), "the filter means all"
    return sorted(
        found,
        key=lambda each: (each.principal, each.resource_type, each.name, each.operation, each.host),
    )


async def _quotas(visit: Visit) -> list[tuple[QuotaEntity, QuotaKey, float]]:
    found = await visit.runtime.quotas.describe(QuotaFilter({}, is_strict=False))
    return sorted(
        ((entity, key, value) for entity, quotas in found.items() for key, value in quotas.items()),
        key=lambda each: (
            each[0].user or "",
            each[0].client_id or "",
            each[0].ip or "",
            each[1].value,
        ),
    )


def _to(path: str, search: str) -> Callable[[int], str]:
    return lambda number: link(path, q=search or None, page=number)
