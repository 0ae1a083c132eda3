"""`penstock inbox`: what waits where no broker runs, and what was refused."""

from __future__ import annotations

import json

import psycopg

from tests.cli.test_main import penstock, refused


def test_what_waits_is_shown(database_url: str) -> None:
    here = ("--database-url", database_url)
    assert penstock("inbox", *here).stdout == "Nothing waits.\n"
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO penstock.topic (topic_id, name) VALUES (gen_random_uuid(), 'orders')"
        )
        connection.execute("SELECT penstock.produce('orders', 'k', 'four')")
        connection.execute("SELECT penstock.produce('orders', 'k', 'four')")
    shown = penstock("inbox", *here).stdout.splitlines()
    assert shown[0].split() == ["Topic", "Transactions", "Records", "Bytes", "Oldest,", "s"]
    assert shown[1].split()[:4] == ["orders", "1", "2", "10"]
    (row,) = json.loads(penstock("inbox", "--json", *here).stdout)
    assert {**row, "age_s": 0} == {
        "topic": "orders",
        "transactions": 1,
        "records": 2,
        "bytes": 10,
        "age_s": 0,
    }


def test_what_was_refused_is_shown(database_url: str) -> None:
    here = ("--database-url", database_url)
    assert penstock("inbox", "--refused", *here).stdout == "Nothing was refused.\n"
    with psycopg.connect(database_url) as connection:
        for number in range(3):
            connection.execute(
                "INSERT INTO penstock.inbox_refused (topic, partition, records, bytes, reason)"
                " VALUES ('gone', nullif(%s, 0), 1, 2, 'its topic was deleted')",
                (number,),
            )
    rows = json.loads(penstock("inbox", "--refused", "--limit", "2", "--json", *here).stdout)
    assert [row["partition"] for row in rows] == [2, 1]
    shown = penstock("inbox", "--refused", *here).stdout
    assert shown.count("its topic was deleted") == 3


def test_no_database() -> None:
    url = "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"
    assert refused("inbox", "--database-url", url).startswith("The database cannot be used (")
