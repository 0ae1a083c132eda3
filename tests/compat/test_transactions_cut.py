"""Transactions whose connections are cut at each of their requests, in every stock client.

A request that did not arrive, and one whose answer did not: the clients retry both, and nothing may
be lost, written twice or reordered. Expectations: Apache Kafka 4.1's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.compat import confluent
from tests.compat.clients import (
    READ_UNCOMMITTED,
    Client,
    Java,
    read_to_end,
    read_until,
    values,
)
from tests.compat.conftest import CLIENTS, MakeTopic, make_client
from tests.compat.frames import CuttingProxy, Lost
from tests.compat.groups import eventually

PRODUCE, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = (
    0,
    22,
    24,
    25,
    26,
    28,
)


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[CuttingProxy]:
    with closing(CuttingProxy(bootstrap)) as made:
        yield made


@pytest.fixture(params=CLIENTS)
def cut_client(request: pytest.FixtureRequest, proxy: CuttingProxy) -> Iterator[Client]:
    """Each client, behind the proxy."""
    with closing(make_client(request.param, request, proxy.bootstrap)) as made:
        yield made


@pytest.mark.parametrize("what", Lost, ids=lambda what: f"lost {what.value}")
def test_every_request_of_a_transaction_may_be_lost_once(
    cut_client: Client,
    proxy: CuttingProxy,
    bootstrap: str,
    make_topic: MakeTopic,
    transactional_id: str,
    group_id: str,
    what: Lost,
) -> None:
    topic, copies = make_topic(), make_topic()
    confluent.send_all(confluent.producer(bootstrap), [{"topic": topic, "value": b"x"}] * 20)
    proxy.lose(INIT_PRODUCER_ID, what)
    producer = cut_client.producer(transactional_id)
    expected_cuts = [(INIT_PRODUCER_ID, what)]
    keys = [PRODUCE, TXN_OFFSET_COMMIT, END_TXN, END_TXN]
    if cut_client.name != Java.name:  # V2 has no requests to join
        keys += [ADD_PARTITIONS, ADD_OFFSETS]
    aborted = 4  # the second whose EndTxn is lost
    sent: list[str] = []
    with closing(cut_client.reader(topic, group=group_id)) as reader:
        read_until(reader, lambda found: len(found) == 20)
        for number, key in enumerate(keys, 1):
            proxy.lose(key, what)
            expected_cuts.append((key, what))
            producer.begin()
            producer.send(copies, f"{number}a", f"{number}b")
            producer.flush()
            producer.send_offsets(topic, {0: number}, reader.member())
            if number == aborted:
                producer.abort()
            else:
                producer.commit()
                sent += [f"{number}a", f"{number}b"]
                # aiokafka does not wait for stable offsets.
                eventually(lambda: reader.committed(0) == number)  # noqa: B023 - at once
    producer.close()
    assert proxy.cuts() == expected_cuts
    assert values(read_to_end(cut_client, copies)) == sent
    written = read_to_end(cut_client, copies, isolation=READ_UNCOMMITTED)
    assert len(written) == 2 * len(keys)
