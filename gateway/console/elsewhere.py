"""What only one broker can do: a group's coordinator does it, or who dispatches a partition.

Whichever broker's page asks, the same action is asked of that one, for the sake of who asks here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.console.api import Done
from gateway.web.api import Refused
from gateway.web.peers import http_url

if TYPE_CHECKING:
    from core.types import LiveBroker
    from gateway.console.visit import Visit

CHANGES_HANDS: Final = Refused(503, "Another broker takes this over just now. Try again.")
_FORM: Final = "application/x-www-form-urlencoded"


async def ask_there(visit: Visit, broker: LiveBroker, target: str, body: bytes) -> Done | Refused:
    """What a broker says to this action of its own page. target: path and query. Raises
    StoreUnavailable."""
    if visit.is_of_broker or broker.broker_id == visit.runtime.cluster.broker_id:
        return CHANGES_HANDS  # to this broker it was said to be here
    url = http_url(broker, is_tls=visit.console.settings.tls_cert is not None)
    if url is None:
        return Refused(
            503,
            f"Only broker {broker.broker_id} can do this, and it has no address for HTTP: start it "
            "with --http-listen.",
        )
    answer = await visit.console.peers.ask(url, "POST", target, visit.call.caller, body, _FORM)
    if answer.is_done:
        return Done(answer.value["to"], answer.value["text"])
    return Refused(answer.status, answer.reason)
