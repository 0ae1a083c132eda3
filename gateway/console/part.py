"""Makes what the page serves; the only file of this folder that `gateway.app` knows.

Imports with the first connection: see `gateway.web.front_end.BringPages`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.security.acls import AliasOf
    from gateway.console.visit import NamedByClient
    from gateway.front_ends import Surroundings
    from gateway.runtime.runtime import Runtime
    from gateway.web.server import Part


def console(
    alias_of: AliasOf, named_by_client: NamedByClient, runtime: Runtime, around: Surroundings
) -> Part:
    """All pages. alias_of, named_by_client: see Console."""
    from gateway.console.api import load_pages
    from gateway.console.door import Door
    from gateway.console.history import Histories
    from gateway.console.records.room import RecordRoom
    from gateway.console.rendering import Rendering
    from gateway.console.shared import Overview, Topics
    from gateway.console.visit import Console
    from gateway.web.introductions import Introductions
    from gateway.web.peers import Peers
    from gateway.web.server import Part

    is_guarded = runtime.authentication.is_on
    introductions = Introductions(runtime.users)
    records = RecordRoom(runtime)
    around.metrics.watch(
        "penstock_console_streams",
        "Searches, live tails and downloads that run on the page.",
        lambda: records.streams.count,
    )
    services = Console(
        runtime,
        around.settings,
        Rendering(),
        Histories(runtime.console),
        Overview(runtime.console.overview),
        records,
        Topics(runtime.console.topics),
        Peers(around.settings.tls_cert, introductions),
        around.metrics.refusals.count,
        is_guarded,
        alias_of,
        named_by_client,
    )
    return Part(
        load_pages(),
        services,
        refuse=Door(introductions, is_guarded=is_guarded).refuse,
        open_paths=("/login", "/static/{file}"),
        for_people=True,
        show_refusal=services.rendering.refusal,
    )
