"""The `penstock` command as a person types it: what it prints, and its exit codes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient

from cli.banner import banner
from cli.check import Presence, presence
from core.config.definitions import NOT_COMPACTED, TOPIC_CONFIGS
from core.version import VERSION
from storage.server.embedded import EmbeddedPostgres
from tests.conftest import READY_WITHIN_S, SMALL_POSTGRES, Gateway, StartGateway, free_port
from tests.loaded import run

# Hermetic: neither this machine's settings nor a terminal's width decide what is printed.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")},
    "COLUMNS": "100",
    "NO_COLOR": "1",
    # Several workers' brokers could not have the ports that are the defaults.
    "PENSTOCK_PULSAR_LISTEN": "none",
    "PENSTOCK_HTTP_LISTEN": "none",
}


def penstock(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run(*arguments, environment=ENVIRONMENT)


def as_typed(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """With the interpreter's own start."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    )


Run = Callable[..., subprocess.CompletedProcess[str]]


def refused(*arguments: str | Path, start: Run = penstock) -> str:
    """What is said about a wrong setting: one line, exit code 2, no traceback."""
    done = start(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def wait_for(text: str, gateway: Gateway, within_s: float = 30.0) -> None:
    deadline = time.monotonic() + within_s
    while text not in gateway.log():
        assert time.monotonic() < deadline, gateway.log()
        time.sleep(0.02)


def test_the_version_is_told() -> None:
    done = as_typed("--version")
    assert (done.returncode, done.stdout) == (0, f"penstock {VERSION}\n")


@pytest.mark.parametrize("command", ["", "serve", "check", "topics create", "users add"])
def test_help_shows_a_flag_without_a_value(command: str) -> None:
    told = penstock(*command.split(), "--help").stdout
    assert "--help" in told
    assert "bool" not in told.lower()


def test_pipelines_show_flags_so_too() -> None:
    told = as_typed("pipeline", "--help").stdout
    assert "--help" in told
    assert "bool" not in told.lower()


# --- wrong settings ---


@pytest.mark.parametrize("start", [as_typed, penstock])
def test_a_wrong_flag_is_refused(start: Run) -> None:
    assert refused("serve", "--listen", "nonsense", start=start) == (
        "penstock: --listen: 'nonsense' is not HOST:PORT; write for example 127.0.0.1:9092."
    )


def test_a_wrong_override_is_refused() -> None:
    assert "is not NAME=VALUE" in refused("serve", "--override", "num.partitions")
    assert "Value must be at least 1" in refused("serve", "--override", "num.partitions=0")


@pytest.mark.parametrize("command", ["serve", "migrate"])
def test_an_unreachable_database_is_refused(command: str) -> None:
    url = f"postgresql://me@127.0.0.1:{free_port()}/none"
    sentence = refused(command, "--database-url", url)
    assert sentence.startswith("penstock: The database cannot be used (")
    assert sentence.endswith("check --database-url and that it is running.")


def test_an_address_in_use_is_refused(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        sentence = refused("serve", "--listen", address, "--database-url", database_url)
    assert sentence == (
        f"penstock: Cannot listen on {address} (Address already in use): "
        "stop what listens there, or choose another address with --listen."
    )


@pytest.mark.parametrize("flag", ["--pulsar-listen", "--http-listen", "--metrics-listen"])
def test_another_address_in_use_is_named(database_url: str, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = penstock(
            "serve",
            *("--listen", f"127.0.0.1:{free_port()}", flag, address),
            *("--database-url", database_url),
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"penstock: Cannot listen on {address} (Address already in use): "
        f"stop what listens there, or choose another address with {flag}."
    )


@pytest.mark.parametrize("host", ["no-such-host.invalid", "label-too-long" * 5 + ".invalid"])
def test_a_host_that_cannot_be_found_is_refused(database_url: str, host: str) -> None:
    sentence = refused("serve", "--listen", f"{host}:9092", "--database-url", database_url)
    assert sentence.startswith(f"penstock: Cannot listen on {host}:9092 (")
    assert sentence.endswith("choose another address with --listen.")


def test_invalid_certificate_is_refused(database_url: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no PEM")
    sentence = refused(
        "serve",
        *("--listen", f"127.0.0.1:{free_port()}", "--database-url", database_url),
        *("--tls-cert", wrong, "--tls-key", wrong),
    )
    assert sentence.startswith(
        f"penstock: TLS cannot start with the certificate {wrong} and the key {wrong} ("
    )
    assert sentence.endswith("with --tls-cert and --tls-key.")


def test_a_key_of_tokens_that_cannot_be_read_is_refused(database_url: str) -> None:
    sentence = refused(
        "serve",
        *("--listen", f"127.0.0.1:{free_port()}", "--database-url", database_url),
        "--override=authenticationEnabled=true",
        "--override=authenticationProviders=token",
        "--override=tokenSecretKey=file:///missing/secret.key",
    )
    assert sentence == (
        "penstock: Broker properties: tokenSecretKey: /missing/secret.key cannot be read "
        "(No such file or directory); name a file that can."
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        ('{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}', "there is no public key in it"),
    ],
)
def test_a_key_set_without_keys_is_refused(
    database_url: str, tmp_path: Path, text: str | None, reason: str
) -> None:
    """CVE-2026-110985: nobody can be told from anybody without them."""
    file = tmp_path / "jwks.json"
    if text is not None:
        file.write_text(text)
    sentence = refused(
        *("serve", "--database-url", database_url),
        f"--override=listeners=SASL_PLAINTEXT://127.0.0.1:{free_port()}",
        "--override=sasl.enabled.mechanisms=OAUTHBEARER",
        f"--override=sasl.oauthbearer.jwks.endpoint.url={file.as_uri()}",
        "--override=sasl.oauthbearer.expected.issuer=x",
        "--override=sasl.oauthbearer.expected.audience=x",
    )
    assert sentence.startswith(
        f"penstock: Broker properties: sasl.oauthbearer.jwks.endpoint.url: {file.as_uri()} cannot"
    )
    assert reason in sentence


def test_a_data_directory_in_use_is_refused(
    migrated_dir: Path, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(data=migrated_dir)
    sentence = refused("serve", "--listen", f"127.0.0.1:{free_port()}", "--data", migrated_dir)
    assert f"is in use by process {gateway.process.pid}: stop that one, or choose" in sentence


def test_a_broker_id_in_use_is_refused(database_url: str, start_gateway: StartGateway) -> None:
    start_gateway("--broker-id", "7", database_url=database_url)
    listen = f"127.0.0.1:{free_port()}"
    options = ("--listen", listen, "--broker-id", "7", "--database-url", database_url)
    done = penstock("serve", *options)
    assert done.returncode == 2
    # It waited before, and said so: the other one might have been dead.
    assert re.fullmatch(
        r"penstock: Broker id 7 is in use by the broker at .*: stop that one, or .*\.",
        done.stderr.splitlines()[-1],
    )


@pytest.mark.parametrize("command", ["migrate", "serve"])
def test_a_schema_that_is_not_ours_is_refused(database_url: str, command: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("DELETE FROM alembic_version")
    options = ("--listen", f"127.0.0.1:{free_port()}") if command == "serve" else ()
    assert refused(command, "--database-url", database_url, *options).startswith(
        "penstock: The database's schema penstock has tables that this version of Penstock did not"
    )


@pytest.mark.parametrize("command", ["migrate", "serve"])
def test_a_role_without_rights_is_refused(empty_database_url: str, command: str) -> None:
    options = ("--listen", f"127.0.0.1:{free_port()}") if command == "serve" else ()
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE without_rights LOGIN")
        url = empty_database_url.replace("postgres@", "without_rights@")
        try:
            sentence = refused(command, "--database-url", url, *options)
        finally:
            connection.execute("DROP ROLE without_rights")
    assert "role lacks a right (permission denied for database" in sentence


# --- serve ---


def test_migrate_makes_the_schema_once(empty_database_url: str) -> None:
    first = as_typed("migrate", "--database-url", empty_database_url)
    assert (first.returncode, first.stdout) == (0, "The schema was brought up to date.\n")
    second = penstock("migrate", "--database-url", empty_database_url)
    assert (second.returncode, second.stdout) == (0, "Nothing to do.\n")
    with psycopg.connect(empty_database_url) as connection:
        row = connection.execute("SELECT count(*) FROM v_topic_partition").fetchone()
    assert row == (0,)


def test_serve_with_an_embedded_database_stops_with_it(
    data_dir: Path, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(data=data_dir, loaded=False)
    pid = int((data_dir / "pgdata" / "postmaster.pid").read_text().splitlines()[0])
    assert Path(f"/proc/{pid}").exists()
    assert gateway.stop() == 0
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.fault
def test_a_killed_gateway_comes_back_with_its_topics(
    migrated_dir: Path, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(data=migrated_dir)
    created = penstock("topics", "create", "kept", "--bootstrap-server", gateway.bootstrap)
    assert created.returncode == 0, created.stderr
    gateway.kill()
    again = start_gateway(data=migrated_dir, port=gateway.port)
    listed = penstock("topics", "list", "--json", "--bootstrap-server", again.bootstrap)
    assert json.loads(listed.stdout) == [{"name": "kept", "partitions": 1}]


def test_the_three_lines_work(data_dir: Path, start_gateway: StartGateway) -> None:
    gateway = start_gateway(data=data_dir, loaded=False)
    wait_for("Three lines to try:", gateway)
    lines = gateway.log().split("Three lines to try:\n")[1].splitlines()[:3]
    outputs = [
        subprocess.run(
            line, shell=True, check=True, capture_output=True, text=True, env=ENVIRONMENT
        ).stdout
        for line in lines
    ]
    assert outputs[0] == "Created demo\n"
    assert "RecordMetadata(topic='demo'" in outputs[1]
    assert outputs[2].count("demo") == 3
    assert re.search(r"postgresql://[^\s'\"]+", gateway.log())


def test_settings_reach_the_broker(
    database_url: str, tmp_path: Path, start_gateway: StartGateway
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[broker]\n"num.partitions" = 2\n"log.retention.hours" = 1\n')
    options = ("--config", file, "--override", "num.partitions=4")
    gateway = start_gateway(*options, database_url=database_url, loaded=False)
    server = ("--bootstrap-server", gateway.bootstrap)
    assert penstock("topics", "create", "t", *server).returncode == 0
    (topic,) = json.loads(penstock("topics", "describe", "t", "--json", *server).stdout)
    assert len(topic["partitions"]) == 4


def test_metrics_are_served(database_url: str, start_gateway: StartGateway) -> None:
    port = free_port()
    start_gateway("--metrics-listen", f"127.0.0.1:{port}", database_url=database_url)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'kafka_network_requestmetrics_requests_total{request="Metadata",version="4"}' in text


def test_a_broker_whose_place_is_taken_stops_with_a_sentence(
    database_url: str, start_gateway: StartGateway
) -> None:
    first = start_gateway(database_url=database_url)
    start_gateway("--advertise", first.bootstrap, database_url=database_url)
    assert first.process.wait(30) == 2
    assert "Traceback" not in first.log()
    assert first.log().splitlines()[-1].startswith("penstock: Broker id 1 was taken over by")


# Stopping needs the second one as well.
@pytest.mark.parametrize("table", ["transaction_state", "broker"])
def test_a_broker_that_cannot_go_on_stops_in_order_and_ends_with_a_failure(
    database_url: str, start_gateway: StartGateway, table: str
) -> None:
    gateway = start_gateway(database_url=database_url)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {table} RENAME TO elsewhere".encode())
    assert gateway.process.wait(60) == 1
    log = gateway.log()
    assert "background_work_failed" in log
    assert ("stopping_failed" in log) is (table == "broker")
    assert "BrokerFailed" not in log  # as the end of a traceback


def test_ctrl_c_is_a_way_to_stop(data_dir: Path, start_gateway: StartGateway) -> None:
    gateway = start_gateway(data=data_dir, loaded=False)
    os.killpg(gateway.process.pid, signal.SIGINT)  # as a terminal sends it
    assert gateway.process.wait(20) == 0
    assert "Traceback" not in gateway.log()


def test_owner_of_the_database_warns_of_other_brokers_when_it_stops(
    migrated_dir: Path, start_gateway: StartGateway
) -> None:
    owner = start_gateway(data=migrated_dir)
    found = re.search(r"'(postgresql://[^']+)'", owner.log())
    assert found is not None
    other = start_gateway(database_url=found[1])
    admin = AdminClient({"bootstrap.servers": owner.bootstrap})
    deadline = time.monotonic() + 30
    while len(admin.list_topics(timeout=5).brokers) < 2:
        assert time.monotonic() < deadline
    del admin
    os.killpg(owner.process.pid, signal.SIGINT)
    assert owner.process.wait(30) == 0
    (line,) = [each for each in owner.log().splitlines() if "database_stops_for_other" in each]
    assert "brokers=[2]" in line
    assert "start this one again with the same --data" in line
    other.kill()


def test_owner_of_the_database_stops_silently_without_other_brokers(
    migrated_dir: Path, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(data=migrated_dir)
    assert gateway.stop() == 0
    assert "database_stops_for_other_brokers" not in gateway.log()


# --- check ---


@pytest.fixture
def own_database(migrated_dir: Path) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL of the test's own, to be stopped."""
    with EmbeddedPostgres(migrated_dir, settings=SMALL_POSTGRES) as server:
        yield server


def test_check_finds_a_broker(gateway: Gateway) -> None:
    assert penstock("check", "--bootstrap-server", gateway.bootstrap).returncode == 0
    assert penstock("check", "--bootstrap", gateway.bootstrap).returncode == 0  # as it once was
    assert "--bootstrap " not in penstock("check", "--help").stdout


def test_check_finds_a_broker_that_speaks_tls(
    database_url: str, certificate: Path, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(
        *("--tls-cert", certificate, "--tls-key", certificate),
        database_url=database_url,
        wait=False,
    )
    wait_for("A line to try", gateway, READY_WITHIN_S)
    assert f"bootstrap.servers={gateway.bootstrap} security.protocol=SSL\n" in gateway.log()
    assert f"check --tls --bootstrap-server {gateway.bootstrap}\n" in gateway.log()
    assert penstock("check", "--tls", "--bootstrap-server", gateway.bootstrap).returncode == 0
    assert penstock("check", "--bootstrap-server", gateway.bootstrap).returncode == 1


def test_check_finds_none() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    done = penstock("check", "--bootstrap-server", bootstrap)
    assert (done.returncode, done.stderr) == (1, f"No broker answers at {bootstrap}.\n")


def test_check_ready_asks_the_database_too(
    own_database: EmbeddedPostgres, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(database_url=own_database.url)
    command = ("check", "--ready", "--bootstrap-server", gateway.bootstrap)
    done = penstock(*command)
    assert (done.returncode, done.stdout) == (
        0,
        f"A broker answers at {gateway.bootstrap} and reads from its database.\n",
    )
    own_database.stop("immediate")
    done = penstock(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"The broker at {gateway.bootstrap} answers, but could not read from its database within "
        "3 s: is PostgreSQL running?\n"
    )
    assert penstock("check", "--bootstrap-server", gateway.bootstrap).returncode == 0


def test_check_ready_finds_none() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    done = penstock("check", "--ready", "--bootstrap-server", bootstrap)
    assert (done.returncode, done.stderr) == (1, f"No broker answers at {bootstrap}.\n")


def test_what_is_not_a_broker_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bootstrap = f"127.0.0.1:{silent.getsockname()[1]}"
        assert presence(bootstrap, timeout_s=0.2) is Presence.SILENT
    assert presence(bootstrap, timeout_s=0.2) is Presence.ABSENT
    assert presence("127.0.0.1:not-a-port", timeout_s=0.2) is Presence.ABSENT


# --- topics ---


def test_compaction_is_spoken_of_alike_everywhere(
    database_url: str, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(database_url=database_url)
    server = ("--bootstrap-server", gateway.bootstrap)
    policy = ("--config", "cleanup.policy=compact")
    assert NOT_COMPACTED in penstock("topics", "create", "kept", *policy, *server).stdout
    assert NOT_COMPACTED in penstock("topics", "describe", "kept", *server).stdout
    assert NOT_COMPACTED not in penstock("topics", "create", "plain", *server).stdout
    assert NOT_COMPACTED not in penstock("topics", "describe", "plain", *server).stdout
    (line,) = [each for each in gateway.log().splitlines() if NOT_COMPACTED in each]
    assert "topic=kept" in line
    assert NOT_COMPACTED in TOPIC_CONFIGS["cleanup.policy"].documentation
    assert NOT_COMPACTED in Path("docs/configuration.md").read_text()


def test_topics_are_created_listed_described_and_deleted(gateway: Gateway) -> None:
    server = ("--bootstrap-server", gateway.bootstrap)
    options = ("--partitions", "3", "--config", "retention.ms=3600000")
    assert penstock("topics", "create", "cli.a", "cli.b", *options, *server).stdout.split() == [
        *("Created", "cli.a"),
        *("Created", "cli.b"),
    ]
    listed = json.loads(penstock("topics", "list", "--json", *server).stdout)
    assert {"name": "cli.a", "partitions": 3} in listed
    assert re.search(r"cli\.a +3", penstock("topics", "list", *server).stdout)
    (topic,) = json.loads(penstock("topics", "describe", "cli.a", "--json", *server).stdout)
    assert topic["configs"] == {"retention.ms": "3600000"}
    assert [each["end_offset"] for each in topic["partitions"]] == [0, 0, 0]
    shown = penstock("topics", "describe", "cli.a", *server).stdout
    assert "retention.ms=3600000" in shown
    deleted = penstock("topics", "delete", "cli.a", "cli.b", *server)
    assert sorted(deleted.stdout.split()) == ["Deleted", "Deleted", "cli.a", "cli.b"]
    listed = json.loads(penstock("topics", "list", "--json", *server).stdout)
    assert not {"cli.a", "cli.b"} & {topic["name"] for topic in listed}


def test_existing_topic_is_accepted_if_not_exists(gateway: Gateway) -> None:
    server = ("--bootstrap-server", gateway.bootstrap)
    assert penstock("topics", "create", "cli.once", *server).returncode == 0
    again = penstock("topics", "create", "cli.once", *server)
    assert again.returncode == 1
    assert again.stderr.startswith("cli.once: TOPIC_ALREADY_EXISTS: ")
    will_do = penstock("topics", "create", "cli.once", "cli.new", "--if-not-exists", *server)
    assert (will_do.returncode, will_do.stdout) == (0, "Exists cli.once\nCreated cli.new\n")
    wrong = ("--config", "retention.ms=abc", "--if-not-exists")
    assert penstock("topics", "create", "cli.bad", *wrong, *server).returncode == 1


def test_a_topics_refusal_is_kafkas_sentence(gateway: Gateway) -> None:
    server = ("--bootstrap-server", gateway.bootstrap)
    done = penstock("topics", "create", "bad", "--config", "retention.ms=abc", *server)
    assert done.returncode == 1
    assert done.stderr == (
        "bad: INVALID_CONFIG: Invalid value abc for configuration retention.ms: "
        "Not a number of type LONG\n"
    )
    done = penstock("topics", "delete", "nowhere", "--json", *server)
    assert done.returncode == 1
    (result,) = json.loads(done.stdout)
    assert result["error"].startswith("UNKNOWN_TOPIC_OR_PARTITION: ")
    done = penstock("topics", "describe", "nowhere", *server)
    assert done.returncode == 1
    assert done.stderr.startswith("nowhere: UNKNOWN_TOPIC_OR_PARTITION: ")


def test_topics_without_a_broker_say_so() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    done = penstock("topics", "list", "--bootstrap-server", bootstrap)
    assert done.returncode == 1
    assert done.stderr == (
        f"No broker answers at {bootstrap}: start one with 'penstock serve', "
        "or name another with --bootstrap-server.\n"
    )


def test_what_needs_a_controller_says_so_while_the_database_is_away(
    data_dir: Path, start_gateway: StartGateway
) -> None:
    server = EmbeddedPostgres(data_dir, settings=SMALL_POSTGRES)
    gateway = start_gateway(database_url=server.start())
    try:
        assert penstock("topics", "create", "t", "--bootstrap-server", gateway.bootstrap).stdout
    finally:
        server.stop()
    wait_for("heartbeat_failed", gateway)
    wait_for("transactions_not_looked_at", gateway)
    time.sleep(2.5)  # looks for transactions: five
    assert gateway.log().count("transactions_not_looked_at") == 1
    for command in ("create", "delete"):
        done = penstock("topics", command, "u", "--bootstrap-server", gateway.bootstrap)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"The broker at {gateway.bootstrap} ")


def test_where_certificates_are_wanted_the_line_to_try_names_a_file() -> None:
    known = {"database": "./data", "version": "1", "protocol": "SSL"}
    text = banner("localhost:1", "psql URL", **known, asks_for_certificate=True)
    assert "check --command-config FILE --bootstrap-server localhost:1" in text
    assert "check --tls --bootstrap-server" in banner("localhost:1", "psql URL", **known)


def test_the_banner_names_each_of_a_few_brokers() -> None:
    brokers = [f"127.0.0.1:{9092 + number}" for number in range(5)]
    known = {"database": "./data", "version": "1"}
    few = banner(brokers[0], "psql URL", **known, brokers=brokers[:2])
    assert "  Kafka clients   bootstrap.servers=127.0.0.1:9092,127.0.0.1:9093\n" in few
    assert "Brokers" not in few
    assert "bootstrap_servers='127.0.0.1:9092'" in few
    many = banner(brokers[0], "psql URL", **known, brokers=brokers)
    assert f"bootstrap.servers={','.join(brokers[:4])}\n" in many
    assert f"  Brokers         5: {', '.join(brokers)}\n" in many


def test_the_default_address_needs_no_flag_in_the_banner() -> None:
    text = banner("localhost:9092", "psql URL", database="./data", version="1")
    assert "--bootstrap-server" not in text
    assert "--bootstrap-server 127.0.0.1:9093" in banner(
        "127.0.0.1:9093", "psql URL", database="./data", version="1"
    )
