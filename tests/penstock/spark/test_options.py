"""The sink's options: words in, values out, sentences for the rest."""

from __future__ import annotations

import pytest

from penstock.connecting import Login, PropertyError, Tls
from penstock.spark.options import OptionError, parse

NEEDED = {"kafka.bootstrap.servers": "one:9092, [::1]:9093 ,"}


def test_defaults() -> None:
    options = parse(NEEDED, is_stream=True)

    assert options.servers == (("one", 9092), ("::1", 9093))
    assert (options.topic, options.compression, options.batch_size) == (None, "none", 131_072)
    assert (options.include_headers, options.sink_id, options.connecting.tls) == (True, "", None)
    assert (options.delivery_timeout_s, options.transaction) == (120.0, None)


def test_names_are_known_in_any_case_and_with_kafkas_prefix() -> None:
    given = NEEDED | {
        "BATCH.size": "5",
        "Kafka.Compression.Type": "ZSTD",
        "includeheaders": "FALSE",
    }

    options = parse(given, is_stream=True)

    assert (options.batch_size, options.compression, options.include_headers) == (5, "zstd", False)


def test_what_spark_adds_is_nobodys_concern() -> None:
    parse(NEEDED | {"checkpointLocation": "/x", "queryName": "q"}, is_stream=True)


def test_a_batch_jobs_topics_are_told_apart() -> None:
    given = NEEDED | {"topic": "t", "txnAppId": "a", "txnVersion": "7"}

    assert parse(given, is_stream=False).sink_id == "t"
    assert parse(given, is_stream=False).transaction == ("a", 7)
    assert parse(given | {"sink.id": "s"}, is_stream=False).sink_id == "s"
    assert parse(NEEDED | {"topic": "t"}, is_stream=True).sink_id == ""


def test_tls() -> None:
    given = NEEDED | {"kafka.security.protocol": "ssl"}

    assert parse(given, is_stream=True).connecting.tls == Tls(None, check_hostname=True)
    given |= {"kafka.ssl.truststore.location": "/ca", "kafka.ssl.truststore.type": "PEM"}
    given |= {"kafka.ssl.endpoint.identification.algorithm": ""}
    assert parse(given, is_stream=True).connecting.tls == Tls("/ca", check_hostname=False)
    with pytest.raises(PropertyError, match="'/nowhere' cannot be read"):
        Tls("/nowhere", check_hostname=True).context()


def test_login() -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    given = NEEDED | {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{module} required username="a" password="b";',
    }
    found = parse(given, is_stream=False).connecting
    assert (found.tls, found.login) == (None, Login("SCRAM-SHA-512", "a", "b"))
    assert '"b"' not in repr(parse(given, is_stream=False))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, r"Option kafka\.bootstrap\.servers is missing\."),
        ({"kafka.bootstrap.servers": " , "}, "names no server"),
        ({"kafka.bootstrap.servers": "one"}, "is host:port.*, not 'one'"),
        ({"kafka.bootstrap.servers": "one:99999"}, "not 'one:99999'"),
        (NEEDED | {"topics": "t"}, "has no option 'topics'. It has: includeHeaders, kafka"),
        (NEEDED | {"topic": ""}, "topic is empty"),
        (NEEDED | {"compression.type": "brotli"}, "is none, gzip, .* not 'brotli'"),
        (NEEDED | {"batch.size": "0"}, "is a number from 1"),
        (NEEDED | {"batch.size": "1e3"}, "not '1e3'"),
        (NEEDED | {"includeHeaders": "yes"}, "includeHeaders is true or false, not 'yes'"),
        (NEEDED | {"kafka.security.protocol": "TLS"}, "is PLAINTEXT, .* or SASL_SSL, not 'TLS'"),
        (NEEDED | {"kafka.security.protocol": "SASL_SSL"}, r"kafka\.sasl\.mechanism is PLAIN"),
        (NEEDED | {"kafka.ssl.truststore.type": "JKS"}, "is PEM"),
        (NEEDED | {"txnAppId": "a"}, "txnappid is for batch writes"),
    ],
)
def test_refusals_of_a_stream(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        parse(given, is_stream=True)


@pytest.mark.parametrize("version", ["", "-1", "1.5", str(2**63)])
def test_refusals_of_a_batch_job(version: str) -> None:
    with pytest.raises(OptionError, match="txnVersion is a whole number"):
        parse(NEEDED | {"txnAppId": "a", "txnVersion": version}, is_stream=False)
    with pytest.raises(OptionError, match="together or not at all"):
        parse(NEEDED | {"txnVersion": "1"}, is_stream=False)
    with pytest.raises(OptionError, match="txnBelow is skip or fail, not 'no'"):
        parse(NEEDED | {"txnBelow": "no"}, is_stream=False)
    with pytest.raises(OptionError, match="with txnAppId and txnVersion only"):
        parse(NEEDED | {"txnBelow": "fail"}, is_stream=False)
