"""The pipelines' command lines: those of docs/spark.md do what it says; wrong ones are refused."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.spark.pipelines import PIPELINES
from penstock.spark.pipelines.application import zip_package
from penstock.spark.pipelines.options import interval, listed, moment, pair, positive
from penstock.spark.pipelines.replay import OffsetRange
from penstock.spark.pipelines.transform import load_function
from tests.certificates import Authority
from tests.conftest import Gateway, StartGateway, free_port
from tests.entrance import PASSWORD, entrance, java_properties
from tests.issuer import AUDIENCE, ISSUER, SECRET, Issuer, serving
from tests.spark.records import Written, read, write, write_transactions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)  # the machine may be busy

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "spark.md"
PATIENCE_S = 300.0
LARGE = "large-orders"
# Whatever directory a pipeline is started in, it is the one that is tested.
WITH_THIS_PACKAGE = {**os.environ, "PYTHONPATH": str(ROOT)}


# --- what the documentation shows ---


def shown(language: str) -> list[str]:
    """Blocks of the page's part on pipelines."""
    part = PAGE.read_text().partition("\n## Pipelines\n")[2]
    return re.findall(rf"^```{language}\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)


def command(name: str, number: int = 0) -> str:
    """The page's first (second …) command of a pipeline."""
    found = [each for each in shown("sh") if each.startswith(f"penstock pipeline {name} ")]
    return found[number]


def make_topics(bootstrap: str, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = [NewTopic(name, num_partitions=2, replication_factor=1) for name in names]
    for made in admin.create_topics(new).values():
        made.result(20)


ORDERS = [(b"c%d" % (n % 3), n * 10) for n in range(30)]


@pytest.fixture
def documented(
    start_gateway: StartGateway, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Gateway]:
    """A gateway with the page's topics, and a directory with its module, in which we are."""
    gateway = start_gateway(database_url=database_url)
    make_topics(gateway.bootstrap, "orders", "large-orders", "totals", "orders-again")
    orders = [
        ("orders", Written(json.dumps({"amount": amount}).encode(), key)) for key, amount in ORDERS
    ]
    write_transactions(
        gateway.bootstrap, "shop", [(True, orders[:20]), (False, orders[:5]), (True, orders[20:])]
    )
    (module,) = (block for block in shown("python") if block.startswith("# totals.py"))
    (tmp_path / "totals.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    yield gateway
    sys.modules.pop("totals", None)
    sys.path[:] = [place for place in sys.path if place != str(tmp_path)]


def here(line: str, gateway: Gateway, directory: Path) -> list[str]:
    """A command of the page, with this test's directory and broker."""
    words = shlex.split(line.replace("\\\n", " "))
    assert words[:2] == ["penstock", "pipeline"]
    known = {"$DATABASE_URL": gateway.database_url or ""}
    words = [known.get(word, re.sub("^/data/", f"{directory}/", word)) for word in words[2:]]
    return [*words, "--bootstrap-server", gateway.bootstrap]


def run_here(words: Sequence[str]) -> int:
    """In this process, on the Spark there is."""
    return int(import_module(f"penstock.spark.pipelines.{words[0]}").main(words[1:]))


def run_alone(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """As a person runs it."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", *words],
        env=WITH_THIS_PACKAGE,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_commands_of_the_documentation_do_what_it_says(
    spark: SparkSession,
    documented: Gateway,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bootstrap = documented.bootstrap
    assert run_here(here(command("transform"), documented, tmp_path)) == 0
    large = [json.loads(record.value)["amount"] for record in read(bootstrap, "large-orders")]
    assert sorted(large) == [amount for _, amount in ORDERS if amount >= 100]
    assert re.search(r"^batch 0: 30 rows in .* rows/s$", capsys.readouterr().out, re.MULTILINE)

    assert run_here(here(command("transform", 1), documented, tmp_path)) == 0
    totals = {record.key: int(record.value) for record in read(bootstrap, "totals")}
    assert totals == {k: sum(a for key, a in ORDERS if key == k) for k in (b"c0", b"c1", b"c2")}

    assert run_here(here(command("archive"), documented, tmp_path)) == 0
    (reading,) = (block for block in shown("python") if block.startswith("rows = spark.read"))
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    exec(reading.replace("/data", str(tmp_path)).replace("2026-11-21", today), {"spark": spark})
    assert '{"amount": 100}' in capsys.readouterr().out

    assert run_here(here(command("replay"), documented, tmp_path)) == 0
    assert "Done: 30 records of run " in capsys.readouterr().out
    again = read(bootstrap, "orders-again")
    original = read(bootstrap, "orders")
    assert [record.value for record in again] == [record.value for record in original]
    assert [record.headers[2][1] for record in again] == [b"%d" % r.offset for r in original]

    # The Spark there is has begun in another directory.
    report_at = tmp_path / "audit.html"
    line = command("audit").replace("audit.html", str(report_at))
    assert run_here(here(line, documented, tmp_path)) == 0
    assert f"Report: {report_at}" in capsys.readouterr().out
    assert "33.3 %" not in (report := report_at.read_text())
    assert "(5 records)" in report  # aborted
    assert "shop" in report


def test_a_pipeline_that_goes_on_ends_in_peace_and_goes_on_where_it_was(
    spark: SparkSession, documented: Gateway, tmp_path: Path
) -> None:
    """Told to all its processes, as a terminal and a service manager do."""
    line = command("transform").replace(">= 100", ">= 0")
    words = here(line.replace("--available-now", ""), documented, tmp_path)
    count = 30
    for number, word in ((signal.SIGINT, "Interrupted"), (signal.SIGTERM, "Terminated")):
        # The one before may have read all there was: without a record more there is no batch.
        write(documented.bootstrap, "orders", [order(count)])
        count += 1
        log = tmp_path / f"{word}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "pipeline", *words, "--trigger", "200ms"],
                env=WITH_THIS_PACKAGE,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + PATIENCE_S
            while "\nbatch " not in log.read_text():
                assert time.monotonic() < deadline, log.read_text()
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            write(documented.bootstrap, "orders", [order(n) for n in range(count, count + 1000)])
            time.sleep(0.3)  # in the middle of a batch, as a rule
            os.killpg(process.pid, number)
            assert process.wait(PATIENCE_S) == 128 + number
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        told = log.read_text()
        assert told.endswith(f"\n{word}. The same command goes on where it was.\n")
        assert not re.search(r"Traceback|^\tat | ERROR [A-Z]", told, re.MULTILINE), told
        count += 1000
    assert run_here(here(line, documented, tmp_path)) == 0
    found = [json.loads(record.value)["amount"] for record in read(documented.bootstrap, LARGE)]
    assert sorted(found) == [n * 10 for n in range(count)]


@pytest.mark.variant  # a minute and more; `make variants`
def test_sparks_own_command_runs_a_pipeline(documented: Gateway, tmp_path: Path) -> None:
    (line,) = shown("bash")
    line = line.replace("penstock pipeline", f"{shlex.quote(sys.executable)} -m penstock pipeline")
    line = line.replace("/data/", f"{tmp_path}/").rstrip()
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", f"{line} --bootstrap-server {documented.bootstrap}"],
        cwd=tmp_path,
        env={**WITH_THIS_PACKAGE, "PATH": programs},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Done: 30 records archived.\n" in done.stdout
    assert " INFO MicroBatchExecution" not in done.stderr
    assert list((tmp_path / "submitted" / "topic=orders").rglob("part-*.parquet"))


def order(n: int) -> Written:
    return Written(json.dumps({"amount": n * 10}).encode(), b"c%d" % (n % 3))


def test_a_query_that_spark_refuses_is_told_in_a_sentence(
    spark: SparkSession,
    gateway: Gateway,
    make_topic: Callable[..., str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic = make_topic()
    words = ["transform", "--from", topic, "--to", topic, "--checkpoint", str(tmp_path / "c")]
    words += ["--sql", "SELECT key, string(count(*)) AS value FROM input GROUP BY key"]
    assert run_here([*words, "--bootstrap-server", gateway.bootstrap]) == 1
    said = capsys.readouterr().err
    assert "Spark refuses: [STREAMING_OUTPUT_MODE" in said
    assert "\tat " not in said


def test_over_tls(
    spark: SparkSession,
    start_gateway: StartGateway,
    database_url: str,
    certificate: Path,
    tmp_path: Path,
) -> None:
    """The admin client, Spark's source and the sink are told of the authority once, and show the
    same certificate."""
    port, authority = free_port(), str(certificate.with_suffix(".crt"))
    shown = str(Authority.made(tmp_path).write("alice.pem", "CN=alice"))
    start_gateway(
        *("--tls-cert", authority, "--tls-key", certificate),
        *("--tls-client-ca", shown, "--override=ssl.client.auth=required"),
        *("--advertise", f"localhost:{port}"),
        database_url=database_url,
        port=port,
        wait=False,
    )
    client = {"bootstrap.servers": f"localhost:{port}", "ssl.ca.location": authority}
    client |= {"ssl.key.location": shown, "ssl.certificate.location": shown}
    producer = Producer({**client, "security.protocol": "ssl", "log_level": 0})
    for n in range(10):
        producer.produce("in", b"%d" % n)
        producer.produce("out", b"%d" % n)
    assert producer.flush(60) == 0
    words = ["transform", "--from", "in", "--to", "out", "--checkpoint", str(tmp_path / "c")]
    words += ["--sql", "SELECT value FROM input", "--available-now"]
    words += ["--bootstrap-server", f"localhost:{port}", "--kafka", "security.protocol=SSL"]
    words += ["--kafka", f"ssl.truststore.location={authority}"]
    words += ["--kafka", f"ssl.keystore.location={shown}"]
    types = [f"ssl.{store}.type=PEM" for store in ("truststore", "keystore")]
    for given in ([], types[:1], types):  # Java would take a file for one of another type
        asked = [*words, *(word for each in given for word in ("--kafka", each))]
        assert run_here(asked) == (0 if given == types else 2), given
    with psycopg.connect(database_url) as psql:
        query = "SELECT high_watermark FROM v_topic_partition WHERE topic = 'out'"
        assert psql.execute(query).fetchone() == (20,)


def offering(issuer: Issuer) -> list[str]:
    """A broker's settings."""
    prefix = "sasl.oauthbearer."
    return [
        "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{prefix}jwks.endpoint.url={issuer.url}/jwks",
        f"{prefix}expected.issuer={ISSUER}",
        f"{prefix}expected.audience={AUDIENCE}",
    ]


def asking(issuer: Issuer, user: str) -> dict[str, str]:
    """A client's properties, as Spark's clients (Kafka 3.9) have them."""
    package = "org.apache.kafka.common.security.oauthbearer"
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required "
        f'clientId="{user}" clientSecret="{SECRET}";',
    }


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_with_a_login(
    spark: SparkSession,
    start_gateway: StartGateway,
    database_url: str,
    certificate: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mechanism: str,
) -> None:
    """The same of a login by TLS, from a file as Kafka's tools have it; for OAUTHBEARER Java, the
    admin client and the sink ask the issuer, each for itself."""
    others = {"exp": int(time.time()) - 3600}
    with (
        serving(Issuer(of_clients={"wrong": others})) as issuer,
        entrance(start_gateway, certificate, database_url, *offering(issuer)) as at,
    ):
        allowed = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
        spark._jvm.java.lang.System.setProperty(allowed, f"{issuer.url}/token")
        producer = Producer({"bootstrap.servers": at.open, "log_level": 0})
        for n in range(10):
            producer.produce("in", b"%d" % n)
            producer.produce("out", b"%d" % n)
        assert producer.flush(60) == 0
        file = tmp_path / "client.properties"

        def write(password: str) -> None:
            named = java_properties(at, "SCRAM-SHA-512", password, tls=True)
            if mechanism == "OAUTHBEARER":
                named |= asking(issuer, "wrong" if password == "wrong" else "alice")
            file.write_text("".join(f"{name}={named[name]}\n" for name in named))

        words = ["transform", "--from", "in", "--to", "out", "--checkpoint", str(tmp_path / "c")]
        words += ["--sql", "SELECT value FROM input", "--available-now"]
        words += ["--bootstrap-server", at.secure, "--command-config", str(file)]
        write("wrong")
        assert run_here(words) == 1
        said = capsys.readouterr().err
        assert f"{at.secure} does not let '" in said
        assert "in: SASL_AUTHENTICATION_FAILED" in said
        write(PASSWORD)
        assert run_here(words) == 0
        said = capsys.readouterr().err
        assert PASSWORD not in said
        assert SECRET not in said
    with psycopg.connect(database_url) as psql:
        query = "SELECT high_watermark FROM v_topic_partition WHERE topic = 'out'"
        assert psql.execute(query).fetchone() == (20,)


def test_every_pipeline_is_in_the_documentation() -> None:
    for name in PIPELINES:
        assert f"\n### {name}\n" in PAGE.read_text()
        assert command(name)


@pytest.mark.parametrize("name", [*PIPELINES, "jars"])
def test_help_describes_each_option(name: str) -> None:
    """Without Spark: nothing is started, and no Java is needed."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "pipeline", name, "--help"],
        env={**WITH_THIS_PACKAGE, "COLUMNS": "400", "PATH": "", "JAVA_HOME": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    usage, _, rest = done.stdout.partition("\n\n")
    rest = re.sub(r"\n {8,}", "  ", rest)  # what stands below a long option
    found = re.findall(r"^  (?:-h, )?(--[a-z-]+)(?: \S+)*(.*)$", rest, re.MULTILINE)
    words = {option: re.sub(r"\(default.*\)", "", text).split() for option, text in found}
    assert words.keys() >= {*re.findall(r"--[a-z-]+", usage), "--help"}
    assert [option for option, text in words.items() if len(text) < 2] == []


# --- command lines that are wrong ---


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["transform", "--from", "no", "--to", "t", "--sql", "x", "--checkpoint", "c"], 1, "no"),
        (["archive", "--from", "orders", "no", "--lake", "l"], 1, "There are no topics|is no"),
        (["replay", "--lake", "l", "--to", "no"], 1, "There is no topic no"),
        (["audit", "--topic", "no"], 1, "There is no topic no"),
    ],
)
def test_topics_that_are_not_there_are_named(
    gateway: Gateway,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    sentence: str,
) -> None:
    assert run_here([*words, "--bootstrap-server", gateway.bootstrap]) == code
    assert re.search(sentence, capsys.readouterr().err)


def test_a_broker_that_does_not_answer_is_named() -> None:
    """In a process of its own, which takes kafka-python's open sockets with it."""
    bootstrap = f"127.0.0.1:{free_port()}"
    done = run_alone(["audit", "--topic", "t", "--bootstrap-server", bootstrap])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"No broker answers at {bootstrap}")


@pytest.mark.parametrize(
    "words",
    [
        ["transform", "--from", "a", "--checkpoint", "c"],
        ["transform", "--from", "a", "--checkpoint", "c", "--sql", "x", "--python", "m:f"],
        ["archive", "--from", "a", "--lake", "l", "--trigger", "soon"],
        ["archive", "--from", "a", "--lake", "l", "--trigger", "5s", "--available-now"],
        ["archive", "--from", "a", "--lake", "l", "--max-offsets", "0"],
        ["replay", "--lake", "l", "--to", "t", "--offsets", "5"],
        ["replay", "--lake", "l", "--to", "t", "--since", "yesterday"],
        ["audit", "--topic", "t", "--conf", "x"],
    ],
)
def test_wrong_arguments_end_with_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_here(words)
    assert ended.value.code == 2


@pytest.mark.parametrize("text", ["json", "json:", "nowhere:f", "json:nothing", "json:__name__"])
def test_a_function_that_is_not_there_is_a_wrong_argument(text: str) -> None:
    with pytest.raises(Exception, match=r"--python") as refused:
        load_function(text)
    assert getattr(refused.value, "exit_code", None) == 2


def test_arguments_are_read_as_people_write_them() -> None:
    assert interval("5s") == "5 seconds"
    assert interval("10 min") == "10 minutes"
    assert interval("500milliseconds") == "500 milliseconds"
    assert moment("2026-01-01") == datetime(2026, 1, 1, tzinfo=UTC)
    assert moment("2026-01-01T01:00+01:00") == datetime(2026, 1, 1, tzinfo=UTC)
    assert pair("a = b=c") == ("a", " b=c")
    assert positive("12") == 12
    assert OffsetRange.parse("3:10-20") == OffsetRange(3, 10, 20)
    assert OffsetRange.parse("10-") == OffsetRange(None, 10, None)
    assert listed(["a", "b", "c"]) == "a, b and c"
    with pytest.raises(argparse.ArgumentTypeError):
        positive("-1")


# --- a cluster ---


def test_the_package_can_be_imported_out_of_what_is_sent_to_workers(tmp_path: Path) -> None:
    archive = tmp_path / "package.zip"
    zip_package(archive)
    script = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "import penstock.spark.source as source; print(source.__file__)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=PATIENCE_S,
    )
    assert found.stdout.startswith(str(archive))
