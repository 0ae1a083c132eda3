"""gateway.config: which source wins, and one sentence for each wrong setting."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from core.config.values import authentication_methods
from core.security.listeners import ClientAuth
from gateway.config import (
    HTTP,
    KAFKA,
    LISTENERS,
    PULSAR,
    ROOT_DATA_DIR,
    Endpoint,
    ListenerSettings,
    Settings,
    SettingsError,
    default_data_dir,
    load_settings,
    parse_endpoint,
)
from gateway.tls import TlsFiles


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)


def write(path: Path, text: str) -> Path:
    file = path / "penstock.toml"
    file.write_text(text)
    return file


def refused(flags: dict[str, Any] | None = None, config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as raised:
        load_settings(flags or {}, config)
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert sentence[-1] in ".?"
    return sentence


def test_defaults_expose_nothing() -> None:
    settings = load_settings({})
    assert settings.listen == Endpoint("127.0.0.1", 9092)
    assert settings.pulsar_listen == Endpoint("127.0.0.1", 6650)
    assert settings.http_listen == Endpoint("127.0.0.1", 8080)
    assert settings.metrics_listen is None
    assert settings.database_url is None
    assert settings.broker == {}


def test_a_listener_may_be_turned_off_by_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings({"pulsar_listen": "none"}).listen_on(PULSAR) is None
    file = write(tmp_path, 'pulsar_listen = "127.0.0.1:6650"\n')
    settings = load_settings({}, file)
    assert settings.listen_on(PULSAR) == settings.advertised(PULSAR, 6650)
    assert settings.advertised(PULSAR, 6650) == Endpoint("127.0.0.1", 6650)
    monkeypatch.setenv("PENSTOCK_PULSAR_LISTEN", "None")
    assert load_settings({}, file).listen_on(PULSAR) is None
    assert load_settings({"pulsar_listen": "none"}, file).listen_on(PULSAR) is None
    assert refused({"pulsar_listen": "nowhere"}).startswith("--pulsar-listen: 'nowhere' is not")
    assert "--pulsar-advertise" in refused({"pulsar_advertise": "0.0.0.0:1"})


def test_flags_win_over_environment_over_file_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, 'listen = "127.0.0.1:1"\nrack = "file"\nlog_level = "debug"\n')
    monkeypatch.setenv("PENSTOCK_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("PENSTOCK_RACK", "environment")
    settings = load_settings({"listen": "127.0.0.1:3", "rack": None}, file)
    assert settings.listen.port == 3
    assert settings.rack == "environment"
    assert settings.log_level == "debug"
    assert settings.log_format == "console"


def test_the_file_is_named_by_the_environment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CONFIG", str(write(tmp_path, 'rack = "r1"\n')))
    assert load_settings({}).rack == "r1"


def test_broker_properties_merge_by_kafkas_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(
        tmp_path,
        '[broker]\n"log.retention.hours" = 24\n"num.partitions" = 3\n'
        'log.cleanup.policy = ["delete", "compact"]\nauto.create.topics.enable = false\n',
    )
    monkeypatch.setenv("PENSTOCK_BROKER__LOG_RETENTION_HOURS", "48")
    monkeypatch.setenv("PENSTOCK_BROKER__MAX_CONNECTIONS_PER_IP", "9")
    settings = load_settings({"broker": {"num.partitions": "5"}}, file)
    assert settings.broker == {
        "log.retention.hours": "48",
        "num.partitions": "5",
        "log.cleanup.policy": "delete,compact",
        "auto.create.topics.enable": "false",
        "max.connections.per.ip": "9",
    }


def test_a_password_stays_out_of_the_sentence() -> None:
    assert "hunter2" not in refused({"database_url": "mysql://me:hunter2@host/db"})


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            {"listen": "nonsense"},
            "--listen: 'nonsense' is not HOST:PORT; write for example 127.0.0.1:9092.",
        ),
        ({"listen": "::1:9092"}, "--listen: '::1:9092' is not HOST:PORT; "),
        ({"listen": "h:99999"}, "--listen: port 99999 is above 65535; "),
        (
            {"advertise": "0.0.0.0:9092"},
            "Clients cannot connect to 0.0.0.0:9092; set --advertise to a name they can reach.",
        ),
        (
            {"database_url": "host=here"},
            "--database-url: it is not a PostgreSQL URL; write postgresql://USER",
        ),
        ({"broker_id": "-1"}, "--broker-id: Input should be greater than or equal to 0."),
        ({"broker_id": "x"}, "--broker-id: Input should be a valid integer"),
        ({"log_format": "xml"}, "--log-format: Input should be 'console' or 'json'."),
        (
            {"data": "d", "database_url": "postgresql://h/d"},
            "--data and --database-url are both set; keep --data for the embedded PostgreSQL",
        ),
        (
            {"tls_cert": "c.pem"},
            "TLS needs a certificate and a key; set both --tls-cert and --tls-key.",
        ),
        (
            {"tls_cert": "/nonexistent/c.pem", "tls_key": "/nonexistent/k.pem"},
            "/nonexistent/c.pem cannot be read; name a PEM file that can.",
        ),
        (
            {"broker": {"log.retention.hours": "abc"}},
            "Broker properties: Invalid value abc for configuration log.retention.hours: "
            "Not a number of type INT.",
        ),
        (
            {"broker": {"log.retention.hour": "1"}},
            "Broker properties: Unknown broker property: log.retention.hour; "
            "did you mean log.retention.hours?",
        ),
        (
            {"broker": {"retention.ms": "1"}},
            "Broker properties: retention.ms is a topic's property; "
            "for all topics set log.retention.ms",
        ),
        (
            {"broker": {"authorizer.class.name": "x"}},
            "Broker properties: Invalid value x for configuration authorizer.class.name: The only "
            "authorizer is org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        ),
        (
            {"broker": {"super.users": "alice"}},
            "Broker properties: super.users: 'alice' is not Type:name; write for example "
            "User:admin;User:alice",
        ),
        (
            {"broker": {"principal.builder.class": "x"}},
            "Broker properties: principal.builder.class cannot be changed: clients log in with "
            "PLAIN, SCRAM and OAUTHBEARER; other ways are not there",
        ),
        (
            {"broker": {"group.consumer.session.timeout.ms": "10000"}},
            "Broker properties: group.consumer.session.timeout.ms must be greater than or equal "
            "to group.consumer.min.session.timeout.ms.",
        ),
        (
            {"broker": {"broker.id": "1"}},
            "Broker properties: broker.id is set by --broker-id",
        ),
        (
            {"broker": {"listeners": "SASL_SSL://:9093"}},
            "Broker properties: listener SASL_SSL speaks SASL_SSL, and there is no certificate",
        ),
        (
            {
                "broker": {
                    "listeners": "SASL_PLAINTEXT://:9093",
                    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
                    "sasl.oauthbearer.jwks.endpoint.url": "https://issuer.example/jwks",
                }
            },
            "Broker properties: listener SASL_PLAINTEXT offers OAUTHBEARER, and could not tell "
            "whose tokens are good; set sasl.oauthbearer.expected.issuer and "
            "sasl.oauthbearer.expected.audience.",
        ),
        (
            {
                "broker": {
                    "listeners": "SASL_PLAINTEXT://:9093,PLAINTEXT://:9092,IN://:9094",
                    "listener.security.protocol.map": "IN:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT,"
                    "SASL_PLAINTEXT:SASL_PLAINTEXT",
                    "sasl.enabled.mechanisms": "OAUTHBEARER",
                    "listener.name.in.sasl.oauthbearer.expected.issuer": "x",
                    "listener.name.in.oauthbearer.sasl.oauthbearer.expected.audience": "x",
                    "listener.name.in.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": "file:///x",
                }
            },
            "Broker properties: listener SASL_PLAINTEXT offers OAUTHBEARER, and could not tell "
            "whose tokens are good; set sasl.oauthbearer.jwks.endpoint.url and "
            "sasl.oauthbearer.expected.issuer and sasl.oauthbearer.expected.audience.",
        ),
        (
            {
                "broker": {
                    "listeners": "SASL_PLAINTEXT://:9093",
                    "sasl.enabled.mechanisms": "OAUTHBEARER",
                    "sasl.oauthbearer.jwks.endpoint.url": "ftp://issuer.example/jwks",
                    "sasl.oauthbearer.expected.issuer": "x",
                    "sasl.oauthbearer.expected.audience": "x",
                }
            },
            "Broker properties: sasl.oauthbearer.jwks.endpoint.url: "
            "it is no URL of http, https or file.",
        ),
        (
            {"broker": {"listener.name.plaintext.plain.sasl.oauthbearer.expected.issuer": "x"}},
            "Broker properties: Unknown broker property: "
            "listener.name.plaintext.plain.sasl.oauthbearer.expected.issuer",
        ),
        (
            {"broker": {"ssl.client.auth": "required"}},
            "Broker properties: ssl.client.auth is required, and no listener speaks SSL; on one of "
            "SASL_SSL set listener.name.<listener>.ssl.client.auth.",
        ),
        (
            {"broker": {"ssl.client.auth": "always"}},
            "Broker properties: Invalid value always for configuration ssl.client.auth: String "
            "must be one of: none, requested, required.",
        ),
        (
            {"tls_cert": __file__, "tls_key": __file__, "broker": {"ssl.client.auth": "required"}},
            "Broker properties: listener SSL asks for certificates (ssl.client.auth), and nothing "
            "says which are good; set --tls-client-ca.",
        ),
        (
            {"tls_cert": __file__, "tls_key": __file__, "tls_client_ca": "/none.pem"},
            "/none.pem cannot be read; name a PEM file that can.",
        ),
        (
            {"tls_client_ca": __file__, "broker": {"ssl.truststore.location": "x"}},
            "--tls-client-ca and ssl.truststore.location are both set; keep one of them.",
        ),
        (
            {"broker": {"penstock.ssl.crl.location": "/lists.pem"}},
            "Broker properties: penstock.ssl.crl.location is set, and nobody asks for "
            "certificates.",
        ),
        (
            {"broker": {"listener.name.plaintext.ssl.client.auth": "required"}},
            "Broker properties: listener.name.plaintext.ssl.client.auth: the listener does not "
            "speak TLS.",
        ),
        (
            {"broker": {"listener.name.OTHER.ssl.client.auth": "required"}},
            "Broker properties: listener.name.OTHER.ssl.client.auth: there is no listener OTHER",
        ),
        (
            {"broker": {"listener.name.plaintext.ssl.client.auth": "x"}},
            "Broker properties: Invalid value x for configuration "
            "listener.name.plaintext.ssl.client.auth",
        ),
        (
            {"broker": {"listener.name.plaintext.max.connections": "1"}},
            "Broker properties: listener.name.plaintext.max.connections cannot be set: "
            "max.connections holds for all listeners.",
        ),
        (
            {"broker": {"listeners": "PLAINTEXT://:9093"}, "listen": "127.0.0.1:9092"},
            "--listen and listeners are both set; keep one of them.",
        ),
        (
            {"broker": {"listeners": "PLAINTEXT://:9093"}, "advertise": "h:9092"},
            "--advertise and listeners are both set; keep one of them.",
        ),
        (
            {"broker": {"listeners": "OURS://:9093"}},
            "Broker properties: listeners: no security protocol is defined for listener OURS",
        ),
        (
            {"broker": {"listeners": ""}},
            "Broker properties: listeners: there is none; write for example SASL_SSL://0.0.0.0:9093.",
        ),
        (
            {"broker": {"advertised.listeners": "PLAINTEXT://h:1"}},
            "Broker properties: advertised.listeners needs listeners; or set --advertise.",
        ),
        (
            {
                "broker": {
                    "listeners": "PLAINTEXT://:1",
                    "advertised.listeners": "PLAINTEXT://0.0.0.0:1",
                }
            },
            "Broker properties: clients cannot connect to PLAINTEXT://0.0.0.0:1; set advertised",
        ),
        (
            {"broker": {"listener.security.protocol.map": "A:B"}},
            "Broker properties: listener.security.protocol.map: 'A:B' is not NAME:PROTOCOL",
        ),
        (
            {
                "broker": {
                    "connection.failed.authentication.delay.ms": "5000",
                    "connections.max.idle.ms": "5000",
                }
            },
            "Broker properties: connection.failed.authentication.delay.ms must be less than",
        ),
        (
            {"broker": {"sasl.enabled.mechanisms": "GSSAPI"}},
            "Broker properties: Invalid value GSSAPI for configuration sasl.enabled.mechanisms",
        ),
    ],
)
def test_a_wrong_flag_is_one_sentence(flags: dict[str, Any], sentence: str) -> None:
    assert refused(flags).startswith(sentence)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LISTEN", "nonsense")
    assert refused().startswith("PENSTOCK_LISTEN: 'nonsense' is not HOST:PORT")


def test_a_wrong_broker_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER__NUM_PARTITIONS", "0")
    assert refused() == (
        "PENSTOCK_BROKER: Invalid value 0 for configuration num.partitions: "
        "Value must be at least 1."
    )


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("PENSTOCK_DATABSE_URL", "; did you mean PENSTOCK_DATABASE_URL?"),
        ("PENSTOCK_TLS_CERTT", "; did you mean PENSTOCK_TLS_CERT?"),
        ("penstock_lisen", "; did you mean PENSTOCK_LISTEN?"),
        ("PENSTOCK_CONFG", "; did you mean PENSTOCK_CONFIG?"),
        ("PENSTOCK_BROKER__NUM_PARTITION", "; did you mean PENSTOCK_BROKER__NUM_PARTITIONS?"),
        ("PENSTOCK_BROKER_NUM_PARTITIONS", "; did you mean PENSTOCK_BROKER__NUM_PARTITIONS?"),
        ("PENSTOCK_LISTEN__PORT", "; did you mean PENSTOCK_LISTEN?"),
        ("PENSTOCK_PORT", ": remove it."),
        ("PENSTOCK_QQQQQQQ", ": remove it."),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    monkeypatch.setenv(name, "hunter2")
    sentence = refused({"listen": "127.0.0.1:9092"})
    assert sentence == f"{name} is not a setting{hint}"
    assert "hunter2" not in sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PENSTOCK_CACHE", "/var/cache"),  # of Spark's jars
        ("PENSTOCK_TEST_BOOTSTRAP", "kafka"),
        ("PENSTOCK_DATABSE_URL", ""),  # as good as not set, as with a setting
        # Kubernetes puts these into the containers beside services "penstock" and "penstock-all".
        ("PENSTOCK_SERVICE_HOST", "10.0.0.1"),
        ("PENSTOCK_SERVICE_PORT", "9092"),
        ("PENSTOCK_SERVICE_PORT_KAFKA", "9092"),
        ("PENSTOCK_PORT", "tcp://10.0.0.1:9092"),
        ("PENSTOCK_PORT_9092_TCP", "tcp://10.0.0.1:9092"),
        ("PENSTOCK_PORT_9092_TCP_ADDR", "10.0.0.1"),
        ("PENSTOCK_ALL_SERVICE_HOST", "10.0.0.1"),
        ("PENSTOCK_ALL_PORT", "tcp://10.0.0.1:9092"),
    ],
)
def test_variables_that_are_not_a_brokers_are_let_be(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert load_settings({}).model_dump() == Settings.model_construct().model_dump()


def test_a_misspelt_property_in_the_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    file = write(tmp_path, "[broker]\nnum.partition = 3\n")
    assert refused(config=file) == (
        f"broker in {file}: Unknown broker property: num.partition; did you mean num.partitions?"
    )


def test_a_wrong_property_in_the_file_is_not_the_brokers_ids_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER_ID", "1")
    file = write(tmp_path, "[broker]\nnum.partitions = 0\n")
    assert refused(config=file).startswith(f"broker in {file}: Invalid value 0")


def test_an_unreadable_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", "num.partitions=3")
    assert refused().startswith("PENSTOCK_BROKER is not a JSON object")


def test_a_wrong_line_in_the_file_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "listen = 9092\n")
    assert refused(config=file).startswith(f"listen in {file}: '9092' is not HOST:PORT")


def test_an_unknown_line_in_the_file_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, 'lisen = "127.0.0.1:9092"\n')
    assert refused(config=file) == f"{file} has an unknown setting lisen; did you mean listen?"


def test_a_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    assert "is not TOML" in refused(config=write(tmp_path, "listen: 127.0.0.1"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    sentence = refused(config=tmp_path / "none.toml")
    assert sentence.endswith("(No such file or directory): name another with --config.")


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("127.0.0.1:9092", Endpoint("127.0.0.1", 9092)),
        ("[::1]:9092", Endpoint("::1", 9092)),
        (":9092", Endpoint("", 9092)),
        (" host.example:0 ", Endpoint("host.example", 0)),
    ],
)
def test_endpoints(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert parse_endpoint(str(endpoint)) == endpoint


def test_what_is_advertised_can_be_reached() -> None:
    assert load_settings({"listen": "127.0.0.1:0"}).advertised(KAFKA, 4711) == Endpoint(
        "127.0.0.1", 4711
    )
    everywhere = load_settings({"listen": "0.0.0.0:9092"})
    assert everywhere.advertised(KAFKA, 9092) == Endpoint(socket.gethostname(), 9092)
    named = load_settings({"listen": "0.0.0.0:9092", "advertise": "broker.example:19092"})
    assert named.advertised(KAFKA, 9092) == Endpoint("broker.example", 19092)


def test_each_listener_has_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the next protocol's will be: fields of another name, and what is advertised not set."""
    monkeypatch.setitem(LISTENERS, "metrics", ListenerSettings("metrics_listen"))
    assert LISTENERS["metrics"].flag == "--metrics-listen"
    assert load_settings({}).listen_on("metrics") is None
    settings = load_settings({"metrics_listen": ":9100", "advertise": "broker.example:19092"})
    assert settings.listen_on("metrics") == Endpoint("", 9100)
    assert settings.advertised("metrics", 9100) == Endpoint(socket.gethostname(), 9100)
    assert settings.listen_on(KAFKA) == Endpoint("127.0.0.1", 9092)


def test_flags_show_as_broker_properties() -> None:
    settings = load_settings({"rack": "r1", "broker": {"num.partitions": "4"}})
    assert settings.static_broker_values(7, {KAFKA: 9092}) == {
        "num.partitions": "4",
        "broker.id": "7",
        "node.id": "7",
        "broker.rack": "r1",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "advertised.listeners": "PLAINTEXT://127.0.0.1:9092",
    }


def test_kafkas_own_properties_name_listeners() -> None:
    settings = load_settings(
        {
            "broker": {
                "listeners": "internal://127.0.0.1:0,EXTERNAL://:9093",
                "advertised.listeners": "EXTERNAL://kafka.example:443",
                "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:SASL_PLAINTEXT",
            }
        }
    )
    inner, outer = settings.listen_addresses(KAFKA)
    assert (inner.key, inner.names, inner.by_name) == (
        *(KAFKA, ("kafka", "kafka:INTERNAL"), "INTERNAL"),
    )
    assert (outer.key, outer.names, outer.by_name) == (
        *("kafka:EXTERNAL", ("kafka:EXTERNAL",), "EXTERNAL"),
    )
    assert [each.protocol.value for each in (inner, outer)] == ["PLAINTEXT", "SASL_PLAINTEXT"]
    assert inner.advertised(4711) == settings.advertised(KAFKA, 4711) == Endpoint("127.0.0.1", 4711)
    assert outer.advertised(9093) == Endpoint("kafka.example", 443)
    shown = settings.static_broker_values(1, {KAFKA: 4711, "kafka:EXTERNAL": 9093})
    assert shown["listeners"] == "INTERNAL://127.0.0.1:4711,EXTERNAL://:9093"
    assert shown["advertised.listeners"] == "INTERNAL://127.0.0.1:4711,EXTERNAL://kafka.example:443"


@pytest.mark.parametrize(
    ("listen", "is_open"),
    [
        ("127.0.0.1:1", False),
        ("127.1.2.3:1", False),
        ("[::1]:1", False),
        ("localhost:1", False),
        ("0.0.0.0:1", True),
        (":1", True),
        ("10.0.0.7:1", True),
        ("broker.example:1", True),
    ],
)
def test_who_may_reach_a_listener(listen: str, is_open: bool) -> None:
    [plain] = load_settings({"listen": listen}).listen_addresses(KAFKA)
    assert plain.is_open == is_open
    broker = {"listeners": f"SASL_PLAINTEXT://{listen}"}
    [asking] = load_settings({"broker": broker}).listen_addresses(KAFKA)
    assert not asking.is_open


ON = {"authenticationEnabled": "true"}
TOKENS = {**ON, "authenticationProviders": "token"}


@pytest.mark.parametrize(
    ("broker", "sentence"),
    [
        (ON, "authenticationEnabled needs authenticationProviders; name some of token, basic, tls"),
        (TOKENS, "logins by token need one key; set tokenSecretKey or tokenPublicKey"),
        ({**TOKENS, "tokenSecretKey": "a", "tokenPublicKey": "b"}, "logins by token need one key"),
        ({**TOKENS, "tokenSecretKey": "a", "tokenAudience": "x"}, "go together; set both or nei"),
        ({**TOKENS, "tokenSecretKey": "a", "tokenAuthClaim": ""}, "tokenAuthClaim is empty"),
        ({**TOKENS, "tokenPublicKey": "a", "tokenPublicAlg": "HS256"}, "String must be one of: RS"),
        ({**TOKENS, "tokenPublicKey": "a", "tokenPublicAlg": "none"}, "String must be one of: RS"),
        ({**ON, "authenticationProviders": "oauth2"}, "String must be one of: token, basic, tls"),
        ({**ON, "authenticationProviders": "tls"}, "set --tls-cert, --tls-key and --tls-client-ca"),
    ],
)
def test_logins_without_what_they_need_do_not_start(broker: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        load_settings({"broker": broker})


def test_certificates_are_asked_for_where_they_are_logins(certificate: Path) -> None:
    files = {"tls_cert": certificate, "tls_key": certificate, "tls_client_ca": certificate}
    broker = {**ON, "authenticationProviders": "basic,tls"}
    settings = load_settings({**files, "broker": broker})
    for listener, auth in ((PULSAR, "requested"), (HTTP, "requested"), (KAFKA, "none")):
        [address] = settings.listen_addresses(listener)
        assert address.tls is not None
        assert address.tls.client_auth.value == auth
        assert address.tls.client_ca == (certificate if auth == "requested" else None)
    settings = load_settings({**files, "broker": {**broker, "authenticationProviders": "basic"}})
    [address] = settings.listen_addresses(PULSAR)
    assert address.tls is not None
    assert address.tls.client_ca is None


def test_logins_have_pulsars_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    provider = "org.apache.pulsar.broker.authentication.AuthenticationProviderBasic"
    monkeypatch.setenv("PENSTOCK_BROKER__AUTHENTICATIONENABLED", "true")
    monkeypatch.setenv("PENSTOCK_BROKER__PROXYROLES", "a,b")
    file = tmp_path / "penstock.toml"
    file.write_text(f'[broker]\nauthenticationProviders = ["{provider}"]\n')
    settings = load_settings({"pulsar_listen": "0.0.0.0:1", "http_listen": "0.0.0.0:2"}, file)
    assert settings.broker == {**ON, "authenticationProviders": provider, "proxyRoles": "a,b"}
    assert authentication_methods(settings.broker) == ("basic",)
    for listener in (PULSAR, HTTP):
        assert not settings.listen_addresses(listener)[0].is_open


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's server runs as somebody else")
def test_root_in_a_closed_directory_keeps_its_data_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    assert default_data_dir() == ROOT_DATA_DIR
    (tmp_path / "data").mkdir()  # whoever made it means it, and is told what is wrong with it
    assert default_data_dir() == tmp_path / "data"


def test_each_listener_has_its_own_way_with_certificates() -> None:
    """What holds for all is not meant for listeners of SASL_SSL (KIP-684)."""
    here = Path(__file__)
    made = Settings(
        tls_cert=here,
        tls_key=here,
        tls_client_ca=here,
        broker={
            "listeners": "SSL://:1,SASL_SSL://:2,BOTH://:3,ASKS://:4,PLAINTEXT://:5",
            "listener.security.protocol.map": "SSL:SSL,SASL_SSL:SASL_SSL,BOTH:SASL_SSL,ASKS:SSL,"
            "PLAINTEXT:PLAINTEXT",
            "ssl.client.auth": "required",
            "listener.name.both.ssl.client.auth": "requested",
            "listener.name.asks.ssl.client.auth": "requested",
            "listener.name.asks.ssl.truststore.location": "/other.pem",
            "listener.name.asks.penstock.ssl.crl.location": "/asks.crl",
            "penstock.ssl.crl.location": "/lists.crl",
            "listener.name.asks.ssl.principal.mapping.rules": "RULE:CN=(.*)/$1/",
        },
    )
    found = {each.by_name: each for each in made.listen_addresses(KAFKA)}
    assert {name: each.tls for name, each in found.items()} == {
        "SSL": TlsFiles(here, here, here, ClientAuth.REQUIRED, Path("/lists.crl")),
        "SASL_SSL": TlsFiles(here, here),
        "BOTH": TlsFiles(here, here, here, ClientAuth.REQUESTED, Path("/lists.crl")),
        "ASKS": TlsFiles(here, here, Path("/other.pem"), ClientAuth.REQUESTED, Path("/asks.crl")),
        "PLAINTEXT": None,
    }
    assert {name for name, each in found.items() if each.is_open} == {"ASKS", "PLAINTEXT"}
    assert made.principal_mapping("ASKS").user_of("CN=a") == "a"
    assert made.principal_mapping("SSL").user_of("CN=a") == "CN=a"
    assert [each.tls for each in made.listen_addresses(PULSAR)] == [TlsFiles(here, here)]


def test_lists_of_revoked_certificates_count_at_pulsars_door_as_well() -> None:
    here = Path(__file__)
    made = Settings(
        tls_cert=here,
        tls_key=here,
        tls_client_ca=here,
        broker={**ON, "authenticationProviders": "tls", "penstock.ssl.crl.location": "/lists.crl"},
    )
    asked = TlsFiles(here, here, here, ClientAuth.REQUESTED, Path("/lists.crl"))
    for listener in (PULSAR, HTTP):
        assert [each.tls for each in made.listen_addresses(listener)] == [asked]
