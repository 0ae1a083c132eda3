"""The servers that a URL names, in the order in which they are tried.

libpq tries them as they are written, for each connection anew. So the first would be waited for,
each time, while its machine is gone; and one that was given up and comes back as a primary would be
taken again. Here the one that was of use last is first, and one that was not is last. Must not
connect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict


class Hosts:
    """Of one URL. A URL with one host, or with addresses (`hostaddr`), stays as it is."""

    def __init__(self, url: str) -> None:
        """url: one that libpq can read."""
        given = conninfo_to_dict(url)
        names, ports = (str(given.get(each) or "").split(",") for each in ("host", "port"))
        if len(ports) == 1:
            ports *= len(names)
        is_list = len(names) == len(ports) > 1 and "hostaddr" not in given
        self._order = list(zip(names, ports, strict=True)) if is_list else []

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What libpq is to take instead of the URL's."""
        if not self._order:
            return {}
        names, ports = zip(*self._order, strict=True)
        return {"host": ",".join(names), "port": ",".join(ports)}

    def put_first(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """The connection's server is the one to use."""
        self._order.sort(key=lambda each: not _leads_to(each, connection))

    def put_last(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """The connection's server did not answer in time, or is not the one to use."""
        self._order.sort(key=lambda each: _leads_to(each, connection))


def _leads_to(host: tuple[str, str], connection: psycopg.AsyncConnection[Any]) -> bool:
    name, port = host
    info = connection.info
    return name == info.host and port in ("", str(info.port))
