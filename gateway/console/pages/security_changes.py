"""Changes of users, ACLs and quotas, by the services that Kafka's requests for them use.

A password is in no page, no address and no line of the log.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from core.errors import Refusal
from core.quota.changes import Alteration
from core.quota.entities import EntityType, QuotaKey
from core.security.acl_changes import SUPPORTED_OPERATIONS, AclBindingFilter
from core.security.acls import (
    CLUSTER_NAME,
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from core.security.credentials import Deletion, Upsertion, check_user
from core.security.page_operations import (
    CHANGE_QUOTAS,
    CHANGE_USERS,
    CREATE_ACLS,
    DELETE_ACLS,
)
from core.security.verifier import SALT_BYTES, ScramMechanism
from gateway.console.api import Done, Page, action, page
from gateway.console.pages.security import NO_AUTHORIZER
from gateway.web.api import Refused
from gateway.web.call import ClientError
from gateway.web.guard import is_loopback, peer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.console.visit import Visit

_ROUNDS: Final = 8192
_IN_THE_CLEAR: Final = Refused(
    403,
    "This page came without TLS from another machine, where whoever listens would read the "
    "password: open it by https, or on the machine itself",
)
_OF_FILTERS: Final = frozenset({"ANY", "MATCH", "UNKNOWN"})
_OPERATIONS: Final = sorted({Operation.ALL}.union(*SUPPORTED_OPERATIONS.values()))


# --- users ---


@page("/security/users/set")
async def password_form(visit: Visit) -> Page | Refused:
    """Asks for a user's password."""
    visit.require(CHANGE_USERS)
    if not _is_private(visit):
        return _IN_THE_CLEAR
    return Page("set_password.html", {"name": visit.text("name")})


@action("/security/users/set")
async def set_password(visit: Visit) -> Done | Refused:
    """Makes a user for both mechanisms, or gives it another password."""
    visit.require(CHANGE_USERS)
    if not _is_private(visit):
        return _IN_THE_CLEAR
    form = await visit.form()
    name, password = form.text("name"), form.text("password")
    refusal = check_user(name)
    if refusal is not None:
        return Refused(400, refusal.message or refusal.error.name)
    if not password:
        return Refused(400, "The password must not be empty")
    known = (await visit.runtime.users.describe([name]))[name]
    if "new" in form and not isinstance(known, Refusal):
        return Refused(409, f"There is a user {name} already: change its password in the list")
    if password != form.text("again"):
        return Refused(400, "Both passwords must be the same: nothing was changed")
    for mechanism in ScramMechanism:
        salt = secrets.token_bytes(SALT_BYTES)
        salted = await visit.runtime.users.compute(
            mechanism.salted_password, password, salt, _ROUNDS
        )
        # One at a time: a user is altered once in a request.
        await _alter_user(visit, upsertion=Upsertion(name, mechanism, _ROUNDS, salt, salted))
    return Done("/security/users", f"{name} may log in by the new password.")


@page("/security/users/delete")
async def confirm_user_deletion(visit: Visit) -> Page:
    """Names what is lost."""
    visit.require(CHANGE_USERS)
    return Page("delete_user.html", {"name": visit.needed("name")})


@action("/security/users/delete")
async def delete_user(visit: Visit) -> Done | Refused:
    """Deletes a user, by whatever mechanism he logs in."""
    visit.require(CHANGE_USERS)
    name = visit.needed("name")
    found = (await visit.runtime.users.describe([name]))[name]
    if isinstance(found, Refusal):
        return Refused(404, f"There is no user {name}")
    for verifier in found:
        await _alter_user(visit, deletion=Deletion(name, verifier.mechanism))
    return Done("/security/users", f"Deleted user {name}.")


async def _alter_user(
    visit: Visit, deletion: Deletion | None = None, upsertion: Upsertion | None = None
) -> None:
    """Raises ClientError."""
    answers = await visit.runtime.users.alter(
        [] if deletion is None else [deletion],
        [] if upsertion is None else [upsertion],
        principal=visit.call.caller.principal,
        peer=peer_of(visit.call.request),
    )
    for refusal in filter(None, answers.values()):
        raise ClientError(400, refusal.message or refusal.error.name)


def _is_private(visit: Visit) -> bool:
    """Whether a password that is sent here is read by nobody on the way."""
    request = visit.call.request
    return request.url.scheme == "https" or is_loopback(visit.call.caller.host)


# --- ACLs ---


@page("/security/acls/create")
async def acl_form(visit: Visit) -> Page:
    """Asks for an ACL."""
    visit.require(CREATE_ACLS)
    _require_authorizer(visit)
    return Page(
        "create_acl.html",
        {"operations": _OPERATIONS, "types": list(SUPPORTED_OPERATIONS), "wildcard": WILDCARD},
    )


@action("/security/acls/create")
async def create_acl(visit: Visit) -> Done | Refused:
    """Creates one; it counts at every broker within a second."""
    visit.require(CREATE_ACLS)
    _require_authorizer(visit)
    binding = _binding((await visit.form()).text)
    (refusal,) = await visit.runtime.acls.create(
        [binding], principal=visit.call.caller.principal, peer=peer_of(visit.call.request)
    )
    if refusal is not None:
        return Refused(400, refusal.message or refusal.error.name)
    return Done("/security/acls", f"In force: {binding.text}.")


@page("/security/acls/delete")
async def confirm_acl_deletion(visit: Visit) -> Page:
    """Names the one that is lost."""
    visit.require(DELETE_ACLS)
    _require_authorizer(visit)
    binding = _binding(visit.text)
    return Page("delete_acl.html", {"binding": binding})


@action("/security/acls/delete")
async def delete_acl(visit: Visit) -> Done | Refused:
    """Deletes exactly one."""
    visit.require(DELETE_ACLS)
    _require_authorizer(visit)
    binding = _binding(visit.text)
    (gone,) = await visit.runtime.acls.delete(
        [
            AclBindingFilter(
                binding.resource_type,
                binding.name,
                binding.pattern_type,
                binding.principal,
                binding.host,
                binding.operation,
                binding.permission,
            )
        ],
        principal=visit.call.caller.principal,
        peer=peer_of(visit.call.request),
    )
    if isinstance(gone, Refusal):
        return Refused(400, gone.message or gone.error.name)
    if not gone:
        return Refused(404, f"There is no such ACL any more: {binding.text}")
    return Done("/security/acls", f"Deleted: {binding.text}.")


def _require_authorizer(visit: Visit) -> None:
    """Raises ClientError where no ACL counts (SECURITY_DISABLED)."""
    if not visit.runtime.acls.is_on:
        raise ClientError(409, NO_AUTHORIZER)


def _binding(field: Callable[[str], str]) -> AclBinding:
    """Of a form, or of an address. Raises ClientError."""
    try:
        kind, pattern = ResourceType(field("type")), PatternType(field("pattern"))
        operation, permission = Operation(field("operation")), Permission(field("permission"))
    except ValueError as error:
        raise ClientError(400, f"This is no ACL: {error}") from None
    if {kind, pattern, operation, permission} & _OF_FILTERS:
        raise ClientError(400, "This is no ACL: ANY and MATCH stand for several")
    name = CLUSTER_NAME if kind is ResourceType.CLUSTER else field("name")
    principal, host = field("principal"), field("host")
    return AclBinding(kind, name, pattern, principal, host, operation, permission)


# --- quotas ---


@page("/security/quotas/set")
async def quota_form(visit: Visit) -> Page:
    """Asks for a quota."""
    visit.require(CHANGE_QUOTAS)
    return Page("set_quota.html", {"keys": [each.value for each in QuotaKey]})


@action("/security/quotas/set")
async def set_quota(visit: Visit) -> Done | Refused:
    """Sets one of a user, a client id, both together, or an address."""
    visit.require(CHANGE_QUOTAS)
    form = await visit.form()
    try:
        value = float(form.text("value"))
    except ValueError:
        return Refused(400, f"'{form.text('value')[:100]}' is no number")
    both = [each for each in _FIELDS.values() if form.text(each) and f"{each}_default" in form]
    if both:
        what = both[0].replace("_", " ")
        return Refused(400, f"A quota is of one {what}, or each {what}'s default: not of both")
    names = {
        kind: None if f"{field}_default" in form else form.text(field)
        for kind, field in _FIELDS.items()
        if form.text(field) or f"{field}_default" in form
    }
    return await _alter_quota(visit, names, form.text("key"), value)


@page("/security/quotas/remove")
async def confirm_quota_removal(visit: Visit) -> Page:
    """Names the one that is lost."""
    visit.require(CHANGE_QUOTAS)
    return Page("remove_quota.html", {"names": _named(visit), "key": visit.needed("key")})


@action("/security/quotas/remove")
async def remove_quota(visit: Visit) -> Done | Refused:
    """Removes one."""
    visit.require(CHANGE_QUOTAS)
    return await _alter_quota(visit, _named(visit), visit.needed("key"), None)


_FIELDS: Final = {
    EntityType.USER: "user",
    EntityType.CLIENT_ID: "client_id",
    EntityType.IP: "ip",
}


def _named(visit: Visit) -> dict[EntityType, str | None]:
    """Of the address, where an empty name is the default's."""
    query = visit.call.request.query_params
    return {kind: query[field] or None for kind, field in _FIELDS.items() if field in query}


async def _alter_quota(
    visit: Visit, names: dict[EntityType, str | None], key: str, value: float | None
) -> Done | Refused:
    entity = tuple(sorted((kind.value, name) for kind, name in names.items()))
    answers = await visit.runtime.quotas.alter(
        [Alteration(entity, [(key, value)])],
        only_validate=False,
        principal=visit.call.caller.principal,
        peer=peer_of(visit.call.request),
    )
    refusal = answers[entity]
    if refusal is not None:
        return Refused(400, refusal.message or refusal.error.name)
    of = ", ".join(f"{kind} {name or 'by default'}" for kind, name in entity)
    return Done("/security/quotas", f"{'Removed' if value is None else 'Set'} {key} of {of}.")
