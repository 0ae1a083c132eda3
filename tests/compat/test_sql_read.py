"""What a stock client has produced is read in SQL."""

from __future__ import annotations

import psycopg
from confluent_kafka import Producer

from tests.compat.confluent import WAIT, send_all
from tests.compat.conftest import MakeTopic
from tests.conftest import Gateway


def test_what_confluent_kafka_has_produced(gateway: Gateway, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    producer = Producer({"bootstrap.servers": gateway.bootstrap, "linger.ms": 50})
    send_all(
        producer,
        [
            {
                "topic": topic,
                "partition": n % 2,
                "key": b"k%d" % n,
                "value": b'{"n": %d}' % n,
                "headers": [("type", b"json")],
                "timestamp": 1_700_000_000_000 + n,
            }
            for n in range(1000)
        ],
    )
    transactional = Producer({"bootstrap.servers": gateway.bootstrap, "transactional.id": topic})
    transactional.init_transactions(WAIT)
    for end in (transactional.abort_transaction, transactional.commit_transaction):
        transactional.begin_transaction()
        transactional.produce(topic, end.__name__.encode(), partition=1)
        transactional.flush(WAIT)
        end(WAIT)
    assert gateway.database_url is not None
    with psycopg.connect(gateway.database_url) as reader:
        found = reader.execute(
            "SELECT \"offset\", key, (value::jsonb ->> 'n')::integer, headers ->> 'type',"
            ' (extract(epoch FROM "timestamp") * 1000)::bigint'
            " FROM penstock.read_text(%s, 0)",
            [topic],
        ).fetchall()
        assert found == [
            (n, f"k{2 * n}", 2 * n, "json", 1_700_000_000_000 + 2 * n) for n in range(500)
        ]
        query = "SELECT value FROM penstock.read_text(%s, 1, 500, committed => {})"
        committed = reader.execute(query.format("true").encode(), [topic]).fetchall()
        assert committed == [("commit_transaction",)]
        everything = reader.execute(query.format("false").encode(), [topic]).fetchall()
        assert everything == [("abort_transaction",), ("commit_transaction",)]
