"""What `penstock serve` prints once it is ready: where it is, and lines to try.

Knows names of commands and of a view; starts and opens nothing.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

NAMED_MAX: Final = 4
"""Of several brokers: by so many a client finds the others, and a line can still be read."""


def program(name: str) -> str:
    """A program of this environment as a person types it from here: short, but sure to be ours."""
    path = Path(sys.executable).with_name(name)
    near = os.path.relpath(path)
    return shlex.quote(str(path) if near.startswith("..") else near)


def banner(
    bootstrap: str,
    psql_command: str,
    *,
    database: str,
    version: str,
    protocol: str | None = None,
    asks_for_certificate: bool = False,
    data_dir: str | None = None,
    service_url: str | None = None,
    http_url: str | None = None,
    brokers: Sequence[str] = (),
) -> str:
    """The text, a line each for bootstrap address and database, then commands that work.

    bootstrap: HOST:PORT as clients reach it. psql_command: opens the database (`psql URL`).
    database: what the database is, for people (its directory, or its URL without the password).
    protocol: Kafka's name of it where it is not PLAINTEXT: what clients have to trust, and who they
    are, only people know. asks_for_certificate: whether clients show one. data_dir: the embedded
    database's. service_url: where Pulsar's clients are served, http_url: where HTTP is, if they
    are. brokers: the address of each, where there are several; clients are told of some at once.
    """
    named = ",".join(brokers[:NAMED_MAX]) or bootstrap
    produce = (
        "from kafka import KafkaProducer; "
        f"print(KafkaProducer(bootstrap_servers='{bootstrap}').send('demo', b'hello').get(10))"
    )
    look = "SELECT * FROM penstock.v_topic_partition"
    server = "" if bootstrap == "localhost:9092" else f" --bootstrap-server {bootstrap}"
    about = [
        f"Penstock {version} is ready.",
        f"  Kafka clients   bootstrap.servers={named}"
        + (f" security.protocol={protocol}" if protocol else ""),
        *([f"  Pulsar clients  {service_url}"] if service_url else []),
        *([f"  HTTP            {http_url}"] if http_url else []),
        *(
            [f"  Brokers         {len(brokers)}: {', '.join(brokers)}"]
            if len(brokers) > NAMED_MAX
            else []
        ),
        f"  Database        {database}",
        f"  Look inside     {psql_command}",
        "",
    ]
    if protocol is not None and protocol.startswith("SASL_"):
        where = "" if data_dir is None else f" --data {shlex.quote(data_dir)}"
        lines = ["A line to try:", f"  {program('penstock')} users add NAME{where}"]
    elif protocol is not None:
        how = "--command-config FILE" if asks_for_certificate else "--tls"
        lines = [
            "A line to try:",
            f"  {program('penstock')} check {how} --bootstrap-server {bootstrap}",
        ]
    else:
        lines = [
            "Three lines to try:",
            f"  {program('penstock')} topics create demo --partitions 3 --if-not-exists{server}",
            f'  {program("python")} -c "{produce}"',
            f'  {psql_command} -c "{look}"',
        ]
    return "\n".join(about + lines)
