"""`penstock serve` and `penstock migrate`: the commands that start rooms of the server.

Knows flags, exit codes and sentences for people. What is heavy is imported when a command runs, so
that `--help` is quick. Exit codes: 0 done, 1 the broker could not go on, 2 a wrong setting.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cli.banner import NAMED_MAX, banner
from cli.refusals import refusals, refuse, unreachable
from core.version import VERSION

if TYPE_CHECKING:
    from cli.supervised import OrderlyEnd, ReadyFile
    from gateway.config import Settings
    from storage.server.embedded import EmbeddedPostgres

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="TOML file of settings (PENSTOCK_CONFIG)."),
]
DataDirectory = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="Directory of the embedded PostgreSQL; default ./data."
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database-url", metavar="URL", help="A PostgreSQL of your own instead."),
]


def settings_of(config: Path | None, **flags: Any) -> "Settings":
    """What is set by flags, variables and file; ends the command where that is wrong."""
    from gateway.config import SettingsError, load_settings

    try:
        return load_settings(flags, config)
    except SettingsError as error:
        refuse(str(error))


def _overrides(pairs: list[str]) -> dict[str, str] | None:
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            refuse(f"--override: '{pair}' is not NAME=VALUE; write for example num.partitions=3.")
        values[name.strip()] = value
    return values or None


def serve(
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address to listen on; default 127.0.0.1:9092. 0.0.0.0:9092 is every address: "
            "anybody who reaches it can read and write. Passwords: --override listeners=SASL_SSL://…",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address that clients are told to connect to."),
    ] = None,
    pulsar_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|none",
            help="Address to listen on for Pulsar clients; default 127.0.0.1:6650.",
        ),
    ] = None,
    pulsar_advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address that Pulsar clients are told."),
    ] = None,
    http_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|none",
            help="Address to listen on for HTTP (the page, metrics, health, Pulsar's REST); "
            "default 127.0.0.1:8080.",
        ),
    ] = None,
    http_advertise: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address that HTTP clients are told."),
    ] = None,
    console_write: Annotated[
        bool | None,
        typer.Option(
            "--console-write",
            help="Let the page at the HTTP address change things where nobody logs in.",
        ),
    ] = None,
    data: DataDirectory = None,
    database_url: DatabaseUrl = None,
    broker_id: Annotated[
        int | None, typer.Option(help="The broker's id; default: the database gives one.")
    ] = None,
    rack: Annotated[str | None, typer.Option(help="The broker's rack, told to clients.")] = None,
    metrics_listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics here.")
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Brokers to run, with ports counted up from those set here; auto: one on each "
            "core. Default 1.",
        ),
    ] = None,
    log_format: Annotated[str | None, typer.Option(metavar="console|json")] = None,
    log_level: Annotated[str | None, typer.Option(metavar="debug|info|warning|error")] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate chain (PEM).")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Certificates (PEM) by which clients' are checked, where ssl.client.auth asks.",
        ),
    ] = None,
    override: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A Kafka broker property; may be repeated."),
    ] = None,
    config: ConfigFile = None,
    ephemeral: Annotated[
        bool,
        typer.Option(
            "--ephemeral",
            help="For tests: data is gone at exit; without --listen any free port is taken.",
        ),
    ] = False,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Holds bootstrap.servers=… for clients, from when they are served until exit.",
        ),
    ] = None,
    stop_with_stdin: Annotated[
        bool,
        typer.Option("--stop-with-stdin", help="Stop when standard input ends: with its writer."),
    ] = False,
) -> None:
    """Run a broker, or several, with its embedded PostgreSQL or on one of your own."""
    settings = settings_of(
        config,
        listen=listen,
        advertise=advertise,
        pulsar_listen=pulsar_listen,
        pulsar_advertise=pulsar_advertise,
        http_listen=http_listen,
        http_advertise=http_advertise,
        console_write=console_write,
        data=data,
        database_url=database_url,
        broker_id=broker_id,
        rack=rack,
        metrics_listen=metrics_listen,
        workers=workers,
        log_format=log_format,
        log_level=log_level,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        broker=_overrides(override or []),
    )
    from cli import supervised

    if stop_with_stdin:
        supervised.stop_with_stdin()
    ready = supervised.ReadyFile(ready_file)
    with supervised.OrderlyEnd() as end:
        try:
            with ready.only_while_serving():
                _run(settings, ready, end, ephemeral=ephemeral)
        except OSError as error:
            if ready_file is None or error.filename is None:
                raise
            refuse(f"--ready-file: {ready_file} cannot be written ({error.strerror}).")


def _run(settings: "Settings", ready: "ReadyFile", end: "OrderlyEnd", *, ephemeral: bool) -> None:
    def greet(ports: Sequence[Mapping[str, int]]) -> None:
        _greet(settings, server, ports, ready)
        end.if_asked()

    with refusals(), ExitStack() as removals:
        with end.held():
            settings, server = _server(settings, removals, ephemeral=ephemeral)
            if settings.workers > 1:
                from gateway.workers.ports import check_free

                check_free(settings)  # what is counted up, nobody has looked at before
            # PostgreSQL starts while the rest of the program is loaded: each takes half a
            # second. The pool's exit knows no thread whose start an exception met.
            pool = removals.enter_context(ThreadPoolExecutor(1))
            starting = pool.submit(server.start) if server else None
        serve_with = _runner(settings)
        if starting is not None:
            starting.result()
        end.if_asked()
        serve_with(settings, server, on_ready=greet)


def _runner(settings: "Settings") -> Callable[..., None]:
    """What serves by these settings, loaded: one broker in this process, or several in others.

    on_ready: called with the ports of each broker.
    """
    if settings.workers > 1:
        from gateway.workers.supervisor import run as run_workers

        return run_workers
    gc.disable()  # until the broker is up: what is loaded here stays
    from gateway.app import run

    def run_one(
        settings: "Settings",
        server: "EmbeddedPostgres | None",
        on_ready: Callable[[Sequence[Mapping[str, int]]], None],
    ) -> None:
        run(settings, server, on_ready=lambda ports: on_ready([ports]))

    return run_one


def _server(
    settings: "Settings", removals: ExitStack, *, ephemeral: bool
) -> "tuple[Settings, EmbeddedPostgres | None]":
    """The embedded server, if it is to be used, and the settings that go with it.

    Its data is among the removals if it is only for now.
    """
    from storage.server.embedded import EmbeddedPostgres

    if not ephemeral:
        if settings.database_url:
            return settings, None
        return settings, EmbeddedPostgres(settings.data_dir, brokers=settings.workers)
    if settings.data is not None or settings.database_url is not None:
        refuse("--ephemeral makes a database of its own: leave out --data and --database-url.")
    from gateway.config import LISTENERS, Endpoint
    from storage.server.ephemeral import EphemeralPostgres

    server = EphemeralPostgres(brokers=settings.workers)
    removals.callback(server.discard)
    unset = {
        each.listen
        for name, each in LISTENERS.items()
        if settings.listen_on(name) is not None and each.listen not in settings.model_fields_set
    }
    # Kafka's 3 seconds of waiting for a group's other members help no test.
    broker = {"group.initial.rebalance.delay.ms": "0", **settings.broker}
    chosen = {"data": server.data_dir, "broker": broker}
    chosen |= dict.fromkeys(unset, Endpoint("127.0.0.1", 0))
    return settings.model_copy(update=chosen), server


def _greet(
    settings: "Settings",
    server: "EmbeddedPostgres | None",
    ports: Sequence[Mapping[str, int]],
    ready: "ReadyFile",
) -> None:
    """ports: of each broker, by address."""
    from cli.supervised import ready_lines
    from gateway.config import HTTP, KAFKA, PULSAR
    from gateway.workers.plan import settings_of as settings_of_worker
    from storage.connection.url import describe_url

    url = describe_url(settings.database_url or "")
    shown = url if server is None else str(settings.data_dir)
    psql = f"psql '{url}'" if server is None else server.psql_command
    kafka, *_ = settings.listen_addresses(KAFKA)
    protocol = None if kafka.protocol.value == "PLAINTEXT" else kafka.protocol.value
    tls = settings.tls_cert is not None

    def told(listener: str) -> list[str]:
        """Where its clients are to go, of each broker."""
        return [
            str(settings_of_worker(settings, number, {}).advertised(listener, each[listener]))
            for number, each in enumerate(ports)
            if listener in each
        ]

    bootstrap, pulsar, http = told(KAFKA), told(PULSAR), told(HTTP)
    pulsars = f"pulsar{'+ssl' if tls else ''}://"
    https = [f"http{'s' if tls else ''}://{each}" for each in http]
    text = banner(
        bootstrap[0],
        psql,
        database=shown,
        version=VERSION,
        protocol=protocol,
        asks_for_certificate=kafka.asks_for_certificate,
        data_dir=shown if server is not None else None,
        service_url=pulsars + ",".join(pulsar[:NAMED_MAX]) if pulsar else None,
        http_url=", ".join(https[:NAMED_MAX]) or None,
        brokers=bootstrap,
    )
    Console(soft_wrap=True, highlight=False).print(text, markup=False)
    # A URL of one's own may hold a password.
    own_url = server.url if server else None
    ready.write(
        ready_lines(
            ",".join(bootstrap),
            protocol=protocol,
            database_url=own_url,
            service_url=pulsars + ",".join(pulsar) if pulsar else None,
            http_url=https[0] if https else None,  # any of them shows and does it all
        )
    )


def migrate(
    database_url: DatabaseUrl = None, data: DataDirectory = None, config: ConfigFile = None
) -> None:
    """Bring the database to this version's schema (`serve` does so by itself)."""
    settings = settings_of(config, database_url=database_url, data=data)
    from contextlib import nullcontext

    from core.ports.log import StoreUnavailable
    from storage.migrate import SchemaRefused, upgrade
    from storage.server.embedded import EmbeddedPostgres, EmbeddedPostgresError

    try:
        server = None if settings.database_url else EmbeddedPostgres(settings.data_dir)
        with server or nullcontext():
            migrated = upgrade(settings.database_url or (server.url if server else ""))
    except (EmbeddedPostgresError, SchemaRefused) as error:
        refuse(str(error))
    except StoreUnavailable as error:
        refuse(unreachable(str(error)))
    Console().print("The schema was brought up to date." if migrated else "Nothing to do.")
