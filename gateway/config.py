"""Settings of the process: command line, then PENSTOCK_… in the environment, then a TOML file.

Knows where a setting may be written and what is wrong with it, in one sentence. What a Kafka
property means is `core.config.definitions`; nothing here opens a socket or a database.
"""

import difflib
import ipaddress
import os
import re
import socket
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)
from pydantic_settings import SettingsError as UnreadableVariable

from core.config.definitions import BROKER_CONFIGS, TLS
from core.config.listeners import (
    bearer_settings,
    listener_and_property,
    missing_for_bearer,
    own_value,
)
from core.config.rules import check_static_bounds, check_static_broker_config
from core.config.types import ConfigError
from core.config.values import (
    authentication_methods,
    broker_bool,
    broker_list,
    broker_text,
    broker_value,
)
from core.security.listeners import ClientAuth, NamedListener, SecurityProtocol, named_listeners
from core.security.oauthbearer import OAUTHBEARER, check_url
from core.security.principal_mapping import PROPERTY as MAPPING_RULES
from core.security.principal_mapping import PrincipalMapping, read_mapping
from gateway.tls import TlsFiles

ENVIRONMENT_PREFIX = "PENSTOCK_"
CONFIG_VARIABLE = "PENSTOCK_CONFIG"
_BROKER_PREFIX = "PENSTOCK_BROKER__"
# Read by others than the broker: Penstock's Spark sink and its tests.
_OTHER_VARIABLES = re.compile(r"PENSTOCK_(CONFIG|CACHE|TEST_.+)")
# Put into every container by Kubernetes, beside a service whose name begins with "penstock".
_SERVICE_VARIABLES = re.compile(
    r"PENSTOCK_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
ROOT_DATA_DIR = Path("/var/lib/penstock")
NOWHERE: Final = "none"
"""The word for an address that is not to be listened on."""
AUTO: Final = "auto"
MOST_WORKERS: Final = 1000
_MOST_BROKER_ID: Final = 2**31 - 1
_MOST_PORT: Final = 65535
CRL: Final = "penstock.ssl.crl.location"
_WITHOUT_DOTS: Final = {name.lower(): name for name in BROKER_CONFIGS if "." not in name}
_WILDCARDS = {"", "0.0.0.0", "::"}


class SettingsError(ValueError):
    """A wrong setting; the text is one sentence that says what to do."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """HOST:PORT. An empty host means every address of the machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: object) -> Endpoint:
    """HOST:PORT or [IPv6]:PORT. Raises ValueError with what to write instead."""
    if isinstance(text, Endpoint):
        return text
    host, colon, port = str(text).strip().rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or (":" in bare and bare == host) or not port.isascii() or not port.isdigit():
        raise ValueError(f"'{text}' is not HOST:PORT; write for example 127.0.0.1:9092")
    if int(port) > _MOST_PORT:
        raise ValueError(f"port {port} is above 65535; write for example 127.0.0.1:9092")
    return Endpoint(bare, int(port))


def parse_endpoint_or_none(text: object) -> Endpoint | None:
    """The same, or the word `none` for no address at all."""
    if text is None or str(text).strip().lower() == NOWHERE:
        return None
    return parse_endpoint(text)


EndpointSetting = Annotated[Endpoint, NoDecode, BeforeValidator(parse_endpoint)]
OptionalEndpointSetting = Annotated[
    Endpoint | None, NoDecode, BeforeValidator(parse_endpoint_or_none)
]


def parse_workers(text: object) -> int:
    """A number, or the word `auto` for one on each core that this process may use.

    Raises ValueError with what to write instead.
    """
    word = str(text).strip().lower()
    if word == AUTO:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return min(cores or 1, MOST_WORKERS)
    if not re.fullmatch("[0-9]{1,4}", word) or not 1 <= int(word) <= MOST_WORKERS:
        raise ValueError(
            f"'{text}' is not a number of brokers; write one from 1 to {MOST_WORKERS}, or {AUTO}"
        )
    return int(word)


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Which fields of Settings hold a listener's addresses.

    listen: where; it may be None, then nothing listens. advertise: what clients are told to connect
    to; None where that cannot be set and is the address listened on.
    """

    listen: str
    advertise: str | None = None

    @property
    def flag(self) -> str:
        """The option that says where to listen."""
        return _flag(self.listen)


KAFKA: Final = "kafka"
PULSAR: Final = "pulsar"
HTTP: Final = "http"
METRICS: Final = "metrics"
"""No listener: where a port alone is served, for Prometheus."""
LISTENERS: Final = {
    KAFKA: ListenerSettings("listen", "advertise"),
    PULSAR: ListenerSettings("pulsar_listen", "pulsar_advertise"),
    HTTP: ListenerSettings("http_listen", "http_advertise"),
}
"""By the name that a front-end gives its listener."""
ASKED: Final = frozenset({PULSAR, HTTP})
"""Those whose clients log in where `authenticationEnabled` is set."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address that the process listens on.

    key: no other address has it; the first of a front-end has its listener's name. flag: what says
    where to listen. names: under which other brokers and clients are told of it. by_name: Kafka's
    name of the listener, if it has one. asks: whether clients log in there in Pulsar's ways. tls:
    what its TLS is made of, where it is spoken.
    """

    key: str
    listen: Endpoint
    advertise: Endpoint | None
    flag: str
    protocol: SecurityProtocol
    names: tuple[str, ...]
    by_name: str | None = None
    asks: bool = False
    tls: TlsFiles | None = None

    def advertised(self, port: int) -> Endpoint:
        """What clients are told to connect to. port: the one listened on (listen may say 0)."""
        if self.advertise is not None:
            return Endpoint(self.advertise.host, self.advertise.port or port)
        host = self.listen.host
        return Endpoint(socket.gethostname() if host in _WILDCARDS else host, port)

    @property
    def is_open(self) -> bool:
        """Whether others than this machine's users may reach it, and nobody asks who they are."""
        asks = self.protocol.is_sasl or self.asks or self.asks_for_certificate
        return not asks and not _is_loopback(self.listen.host)

    @property
    def asks_for_certificate(self) -> bool:
        """Whether nobody comes without."""
        return self.tls is not None and self.tls.client_auth is ClientAuth.REQUIRED


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Settings(BaseSettings):
    """What `penstock serve` runs with. Field names are the flags', with _ for -."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,  # a database URL may hold a password
    )

    listen: EndpointSetting = Field(
        # Kafka listens on every address. Here nobody is asked for a password unless `listeners`
        # says so: whoever reaches the port can read and write everything. So that has to be said.
        default=Endpoint("127.0.0.1", 9092),
        description="Address to listen on for Kafka clients; 0.0.0.0:9092 is every address.",
    )
    advertise: EndpointSetting | None = Field(
        default=None,
        description="Address that Kafka clients are told to connect to; by default the one "
        "listened on.",
    )
    pulsar_listen: OptionalEndpointSetting = Field(
        default=Endpoint("127.0.0.1", 6650),
        description="Address to listen on for Pulsar clients; `none`: not at all.",
    )
    pulsar_advertise: EndpointSetting | None = Field(
        default=None,
        description="Address that Pulsar clients are told to connect to; by default the one "
        "listened on.",
    )
    http_listen: OptionalEndpointSetting = Field(
        default=Endpoint("127.0.0.1", 8080),
        description="Address to listen on for HTTP: the page, metrics, health, Pulsar's REST; "
        "`none`: not at all.",
    )
    http_advertise: EndpointSetting | None = Field(
        default=None,
        description="Address that HTTP clients are told to connect to; by default the one "
        "listened on.",
    )
    console_write: bool = Field(
        default=False,
        description="Whether the page at the HTTP address may change things where nobody logs in; "
        "by default it only shows them.",
    )
    data: Path | None = Field(
        default=None,
        description="Directory of the embedded PostgreSQL; by default ./data.",
    )
    database_url: str | None = Field(
        default=None,
        repr=False,  # it may hold a password
        description="A PostgreSQL of your own, postgresql://USER:PASSWORD@HOST:PORT/DATABASE.",
    )
    broker_id: int | None = Field(
        default=None,
        ge=0,
        le=_MOST_BROKER_ID,
        description="The broker's id; by default the database gives out a free one.",
    )
    rack: str | None = Field(default=None, description="The broker's rack, told to clients.")
    workers: Annotated[int, NoDecode, BeforeValidator(parse_workers)] = Field(
        default=1,
        description="Brokers to run, each in a process of its own and with ports of its own, "
        "counted up from those that are set; `auto`: one on each core that may be used.",
    )
    metrics_listen: EndpointSetting | None = Field(
        default=None, description="Address to serve Prometheus metrics on; none by default."
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="Log lines for people (console) or machines (json)."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least important level that is logged."
    )
    tls_cert: Path | None = Field(
        default=None, description="Certificate chain (PEM); with it clients connect by TLS."
    )
    tls_key: Path | None = Field(default=None, description="Private key (PEM) of the certificate.")
    tls_client_ca: Path | None = Field(
        default=None,
        description="Certificates (PEM) by which those of clients are checked, where "
        "`ssl.client.auth` asks for them.",
    )
    broker: dict[str, str] = Field(
        default_factory=dict,
        description="Kafka's broker properties, by Kafka's names.",
    )

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("database_url")
    @classmethod
    def _is_postgresql_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("postgresql://", "postgres://")):
            raise ValueError(
                "it is not a PostgreSQL URL; write postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
            )
        return value

    @field_validator("broker", mode="before")
    @classmethod
    def _normalise_broker(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            raise ValueError("it is not a table of Kafka's broker properties")
        # Of two spellings of one name the later is the stronger source's.
        return {_property_name(name): _property_text(item) for name, item in _flatten(value)}

    @field_validator("broker")
    @classmethod
    def _check_broker(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if wrong := check_static_broker_config(name, text):
                unknown = wrong.startswith("Unknown")
                hint = _did_you_mean(name, BROKER_CONFIGS) if unknown else ""
                raise ValueError(f"{wrong}{hint}")
        if wrong := check_static_bounds(value):
            raise ValueError(wrong)
        return value

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.data is not None and self.database_url is not None:
            raise ValueError(
                "--data and --database-url are both set; "
                "keep --data for the embedded PostgreSQL or --database-url for your own"
            )
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("TLS needs a certificate and a key; set both --tls-cert and --tls-key")
        if self.tls_client_ca is not None and "ssl.truststore.location" in self.broker:
            raise ValueError(
                "--tls-client-ca and ssl.truststore.location are both set; keep one of them"
            )
        for path in (self.tls_cert, self.tls_key, self.tls_client_ca):
            if path is not None and not os.access(path, os.R_OK):
                raise ValueError(f"{path} cannot be read; name a PEM file that can")
        for field in (each.advertise for each in LISTENERS.values() if each.advertise):
            advertise: Endpoint | None = getattr(self, field)
            if advertise is not None and advertise.host in _WILDCARDS:
                raise ValueError(
                    f"clients cannot connect to {advertise}; "
                    f"set {_flag(field)} to a name they can reach"
                )
        self._check_listeners()
        self._check_client_auth()
        if (
            broker_bool("authenticationEnabled", self.broker)
            and TLS in authentication_methods(self.broker)
            and (self.tls_cert is None or self._client_ca() is None)
        ):
            raise ValueError(
                "Broker properties: logins by certificate (tls) need TLS, and what says which are "
                "good; set --tls-cert, --tls-key and --tls-client-ca"
            )
        self._check_bearer()
        self._check_workers()
        return self

    def _check_listeners(self) -> None:
        """Those that Kafka's own properties name."""
        if "listeners" not in self.broker:
            if "advertised.listeners" in self.broker:
                raise ValueError(
                    "Broker properties: advertised.listeners needs listeners; or set --advertise"
                )
            return
        for field in ("listen", "advertise"):
            if field in self.model_fields_set and getattr(self, field) is not None:
                raise ValueError(f"{_flag(field)} and listeners are both set; keep one of them")
        try:
            found = self.named_listeners
        except ConfigError as error:
            raise ValueError(f"Broker properties: {error}") from error
        for each in found:
            if each.advertised is not None and each.advertised.host in _WILDCARDS:
                raise ValueError(
                    f"Broker properties: clients cannot connect to {each.advertised}; "
                    "set advertised.listeners to a name they can reach"
                )
            if each.protocol.is_tls and self.tls_cert is None:
                raise ValueError(
                    f"Broker properties: listener {each.name} speaks {each.protocol.value}, and "
                    "there is no certificate; set --tls-cert and --tls-key"
                )

    def _check_client_auth(self) -> None:
        """Whoever means clients to show certificates gets that, or does not start."""
        addresses = self.listen_addresses(KAFKA)
        by_name = {(each.by_name or each.protocol.value).lower(): each for each in addresses}
        for name in self.broker:
            found = listener_and_property(name)
            if found is None:
                continue
            listener, plain = found
            if listener not in by_name:
                raise ValueError(
                    f"Broker properties: {name}: there is no listener {listener}; names are "
                    "written in lower case here"
                )
            if plain.startswith(("ssl.", CRL)) and by_name[listener].tls is None:
                raise ValueError(f"Broker properties: {name}: the listener does not speak TLS")
        for each in addresses:
            if each.tls and each.tls.client_auth is not ClientAuth.NONE and not each.tls.client_ca:
                raise ValueError(
                    f"Broker properties: listener {each.by_name or each.protocol.value} asks for "
                    "certificates (ssl.client.auth), and nothing says which are good; set "
                    "--tls-client-ca"
                )
        if self._crl() is not None and not any(
            each.tls and each.tls.crl
            for listener in LISTENERS
            for each in self.listen_addresses(listener)
        ):
            raise ValueError(f"Broker properties: {CRL} is set, and nobody asks for certificates")
        asked = broker_text("ssl.client.auth", self.broker)
        if asked != ClientAuth.NONE.value and not any(
            each.protocol is SecurityProtocol.SSL for each in addresses
        ):
            raise ValueError(
                f"Broker properties: ssl.client.auth is {asked}, and no listener speaks SSL; on "
                "one of SASL_SSL set listener.name.<listener>.ssl.client.auth"
            )

    def _check_bearer(self) -> None:
        """OAUTHBEARER is offered with all that it needs, or the broker does not start."""
        if OAUTHBEARER not in broker_list("sasl.enabled.mechanisms", self.broker):
            return
        for each in self.named_listeners:
            if not each.protocol.is_sasl:
                continue
            if missing := missing_for_bearer(each.name, self.broker):
                raise ValueError(
                    f"Broker properties: listener {each.name} offers {OAUTHBEARER}, and could not "
                    f"tell whose tokens are good; set {' and '.join(missing)}"
                )
            found = bearer_settings(each.name, self.broker)
            if found is not None and (wrong := check_url(found.url)):
                raise ValueError(f"Broker properties: sasl.oauthbearer.jwks.endpoint.url: {wrong}")

    def _check_workers(self) -> None:
        """Each worker has ports and an id of its own."""
        if self.workers == 1:
            return
        if self.broker_id is not None and self.broker_id + self.workers - 1 > _MOST_BROKER_ID:
            raise ValueError(
                f"{self.workers} workers have ids from --broker-id on, up to {_MOST_BROKER_ID}; "
                "set a lower one"
            )
        taken = [
            (f"{each.flag} {each.listen}", each.listen.host, self._ports_from(each.listen.port))
            for listener in LISTENERS
            for each in self.listen_addresses(listener)
            if each.listen.port
        ]
        for what, _, ports in taken:
            if ports.stop - 1 > _MOST_PORT:
                raise ValueError(
                    f"{self.workers} workers listen on ports from {what} on, up to {_MOST_PORT}; "
                    "set a lower one"
                )
        if (one := self.metrics_listen) is not None and one.port:
            taken.append((f"--metrics-listen {one}", one.host, range(one.port, one.port + 1)))
        for (what, host, ports), (other, its_host, its_ports) in combinations(taken, 2):
            is_one_host = host == its_host or bool({host, its_host} & _WILDCARDS)
            if is_one_host and ports.start < its_ports.stop and its_ports.start < ports.stop:
                raise ValueError(
                    f"{self.workers} workers count their ports up, and those from {what} on meet "
                    f"{other}; set addresses further apart"
                )

    def _ports_from(self, first: int) -> range:
        return range(first, first + self.workers)

    def _tls_files(self, protocol: SecurityProtocol, listener: str) -> TlsFiles | None:
        """Of a listener of Kafka's."""
        if not protocol.is_tls or self.tls_cert is None or self.tls_key is None:
            return None
        asked = own_value("ssl.client.auth", listener, self.broker)
        # Where clients log in, what holds for all listeners is not meant (KIP-684).
        if asked is None and protocol is SecurityProtocol.SSL:
            asked = broker_text("ssl.client.auth", self.broker)
        auth = ClientAuth(asked or "none")
        if auth is ClientAuth.NONE:
            return TlsFiles(self.tls_cert, self.tls_key)
        trusted = own_value("ssl.truststore.location", listener, self.broker)
        authorities = Path(str(trusted)) if trusted else self._client_ca()
        lists = own_value(CRL, listener, self.broker)
        crl = Path(str(lists)) if lists else self._crl()
        return TlsFiles(self.tls_cert, self.tls_key, authorities, auth, crl)

    def _crl(self) -> Path | None:
        lists = broker_value(CRL, self.broker)
        return Path(str(lists)) if lists else None

    def _client_ca(self) -> Path | None:
        """By what clients' certificates are checked where nothing else is said."""
        trusted = broker_value("ssl.truststore.location", self.broker)
        return Path(str(trusted)) if trusted else self.tls_client_ca

    def principal_mapping(self, listener: str) -> PrincipalMapping:
        """Whom clients' certificates stand for on a listener of Kafka's, by its name."""
        own = own_value(MAPPING_RULES, listener, self.broker)
        return read_mapping(str(own or broker_text(MAPPING_RULES, self.broker)))

    @property
    def data_dir(self) -> Path:
        """Directory of the embedded PostgreSQL."""
        return self.data or default_data_dir()

    @property
    def named_listeners(self) -> tuple[NamedListener, ...]:
        """Kafka's, where its own properties name them."""
        return named_listeners(self.broker)

    def listen_addresses(self, listener: str) -> tuple[ListenAddress, ...]:
        """Where a front-end is to listen, by its listener; nowhere, if it is not to."""
        if listener == KAFKA and (named := self.named_listeners):
            return tuple(
                _listen_address(number, each, self._tls_files(each.protocol, each.name))
                for number, each in enumerate(named)
            )
        listen = self.listen_on(listener)
        if listen is None:
            return ()
        protocol = SecurityProtocol.SSL if self.tls_cert else SecurityProtocol.PLAINTEXT
        field = LISTENERS[listener].advertise
        advertise: Endpoint | None = getattr(self, field) if field else None
        flag = LISTENERS[listener].flag
        asks = listener in ASKED and broker_bool("authenticationEnabled", self.broker)
        tls = self._tls_files(protocol, protocol.value)
        if tls is not None and listener != KAFKA:
            tls = TlsFiles(tls.certificate, tls.key)
            if asks and TLS in authentication_methods(self.broker):
                tls = TlsFiles(
                    *(tls.certificate, tls.key, self._client_ca(), ClientAuth.REQUESTED),
                    self._crl(),
                )
        names = (listener,)
        return (
            ListenAddress(listener, listen, advertise, flag, protocol, names, asks=asks, tls=tls),
        )

    def listen_on(self, listener: str) -> Endpoint | None:
        """Where a listener is to listen, if anywhere."""
        endpoint: Endpoint | None = getattr(self, LISTENERS[listener].listen)
        return endpoint

    def advertised(self, listener: str, port: int) -> Endpoint:
        """What clients of a front-end are told to connect to, at the first of its addresses."""
        first, *_ = self.listen_addresses(listener)
        return first.advertised(port)

    def static_broker_values(self, broker_id: int, ports: Mapping[str, int]) -> dict[str, str]:
        """Kafka's broker properties as DescribeConfigs shows them, those set by flags included.

        ports: listened on, by address; those that are not there yet are as set.
        """
        listeners, advertised = [], []
        for each in self.listen_addresses(KAFKA):
            name, port = each.by_name or each.protocol.value, ports.get(each.key, each.listen.port)
            listeners.append(f"{name}://{Endpoint(each.listen.host, port)}")
            advertised.append(f"{name}://{each.advertised(port)}")
        values = {
            **self.broker,
            "broker.id": str(broker_id),
            "node.id": str(broker_id),
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(advertised),
        }
        if self.rack is not None:
            values["broker.rack"] = self.rack
        if self.tls_client_ca is not None:
            values["ssl.truststore.location"] = str(self.tls_client_ca)
        return values


def _listen_address(number: int, named: NamedListener, tls: TlsFiles | None) -> ListenAddress:
    """Of Kafka's listeners with names. The first one stands for the broker, as one without a name
    does: by it brokers are recognised, and shown in views."""
    listen, told = named.listen, named.advertised
    row = f"{KAFKA}:{named.name}"
    return ListenAddress(
        key=row if number else KAFKA,
        listen=Endpoint(listen.host, listen.port),
        advertise=None if told is None else Endpoint(told.host, told.port),
        flag="listeners",
        protocol=named.protocol,
        names=(row,) if number else (KAFKA, row),
        by_name=named.name,
        tls=tls,
    )


def _flag(field: str) -> str:
    """How a field is spelt on the command line."""
    return f"--{field.replace('_', '-')}"


def default_data_dir() -> Path:
    """./data; for root in a closed directory (/root) a place its PostgreSQL can reach."""
    here = Path("data").resolve()
    closed = any(not parent.stat().st_mode & 0o001 for parent in here.parents)
    return ROOT_DATA_DIR if os.geteuid() == 0 and closed and not here.exists() else here


def load_settings(flags: Mapping[str, Any], config: Path | None = None) -> Settings:
    """Settings from flags, else the environment, else the file, else defaults.

    flags: those given on the command line, by field name; None counts as not given.
    config: the TOML file; by default the one that PENSTOCK_CONFIG names, if any.
    Raises SettingsError.
    """
    if config is None and os.environ.get(CONFIG_VARIABLE):
        config = Path(os.environ[CONFIG_VARIABLE])
    _check_variables(os.environ)
    from_file = _read_toml(config) if config is not None else {}

    class LoadedSettings(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, env_settings, InitSettingsSource(settings_cls, from_file)

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return LoadedSettings(**given)
    except ValidationError as error:
        raise SettingsError(_sentence(error, given, from_file, config)) from None
    except UnreadableVariable as error:
        raise SettingsError(
            f"PENSTOCK_BROKER is not a JSON object ({error.__cause__}): correct it, or set one "
            "property a variable, as in PENSTOCK_BROKER__NUM_PARTITIONS=3."
        ) from None


def _check_variables(environment: Mapping[str, str]) -> None:
    """Refuses a variable that looks like a setting and is none. Its value is shown to nobody."""
    known = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Settings.model_fields}
    properties = {_broker_variable(name) for name in BROKER_CONFIGS}
    for written, value in environment.items():
        name = written.upper()
        if (
            not name.startswith(ENVIRONMENT_PREFIX)
            or not value  # as if it were not there, like an empty setting
            or name in known
            or _OTHER_VARIABLES.fullmatch(name)
            or _is_of_a_service(name, value)
        ):
            continue
        if name.startswith(_BROKER_PREFIX):
            wrong = check_static_broker_config(_property_name(name[len(_BROKER_PREFIX) :]), value)
            if wrong is None or not wrong.startswith("Unknown"):
                continue
        hint = _nearest_variable(name, [*known, CONFIG_VARIABLE, *properties])
        raise SettingsError(f"{written} is not a setting{hint or ': remove it.'}")


def _nearest_variable(name: str, known: Iterable[str]) -> str:
    # What all names have in common makes none of them near.
    bare = {each.removeprefix(ENVIRONMENT_PREFIX): each for each in known}
    near = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), sorted(bare), n=1)
    return f"; did you mean {bare[near[0]]}?" if near else ""


def _broker_variable(name: str) -> str:
    return f"{_BROKER_PREFIX}{name.upper().replace('.', '_')}"


def _is_of_a_service(name: str, value: str) -> bool:
    if name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://")):
        return True
    return _SERVICE_VARIABLES.fullmatch(name) is not None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise SettingsError(
            f"The settings file {path} cannot be read ({reason}): name another with --config."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"The file {path} is not TOML ({error}): correct it.") from None


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """TOML reads log.retention.hours = 24, unquoted, as tables in tables."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _property_name(name: str) -> str:
    """Kafka's name, or Pulsar's; in the environment they are spelt LOG_RETENTION_HOURS and
    PROXYROLES."""
    if name in BROKER_CONFIGS or "." in name:
        return name
    return _WITHOUT_DOTS.get(name.lower()) or name.lower().replace("_", ".")


def _property_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return str(value)


def _did_you_mean(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _sentence(
    error: ValidationError,
    flags: Mapping[str, Any],
    from_file: Mapping[str, Any],
    config: Path | None,
) -> str:
    """The first thing that is wrong, where it was written, and what to do about it."""
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    field = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        hint = _did_you_mean(field, Settings.model_fields)
        return f"{config} has an unknown setting {field}{hint or ': remove it.'}"
    if not field:
        return f"{message[:1].upper()}{message[1:]}."
    variable = f"{ENVIRONMENT_PREFIX}{field.upper()}"
    if field in flags:
        where = _flag(field)
    elif any(re.fullmatch(f"{variable}(__.*)?", name.upper()) for name in os.environ):
        where = variable
    else:
        where = f"{field} in {config}"
    if field == "broker":
        where = "Broker properties" if field in flags else where
    return f"{where}: {message}{'' if message.endswith('?') else '.'}"
