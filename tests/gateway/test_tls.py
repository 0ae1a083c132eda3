"""TLS at the door: files that change, certificates that clients show, alerts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from core.security.listeners import ClientAuth
from core.security.names import subject_of
from gateway import tls
from gateway.listener import Listener
from gateway.tls import TlsContext, TlsContexts, TlsError, TlsFiles, peer_certificate
from tests.certificates import Authority
from tests.gateway.event_loops import on_every_loop
from tests.gateway.test_listener import Echo, closed, echoed, listening


class Known(Echo):
    """Says who is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        certificate = peer_certificate(transport)
        name = subject_of(certificate) if certificate else "nobody"
        self._transport.write(name.encode() + b"\n")


class Files:
    """A server's files, and what clients trust."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.made(directory)
        self.certificate = self.authority.write("server.pem", "CN=first", host="localhost")
        self.trusted = self.authority.write_own()
        self.crl: Path | None = None

    def of(self, auth: ClientAuth = ClientAuth.NONE) -> TlsFiles:
        return TlsFiles(self.certificate, self.certificate, self.trusted, auth, self.crl)

    def client(self, shown: Path | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.trusted)
        if shown:
            context.load_cert_chain(shown)
        return context

    def renew(self, name: str, authority: Authority | None = None) -> None:
        """As tools do it: beside, then renamed."""
        signed = authority or self.authority
        signed.write("new.pem", name, host="localhost").replace(self.certificate)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "LOOK_INTERVAL_S", 0.05)


@contextlib.asynccontextmanager
async def connected(
    port: int, context: ssl.SSLContext
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost"
    )
    try:
        yield reader, writer
    finally:
        writer.close()


async def named(port: int, context: ssl.SSLContext) -> str:
    """Who the server says is there."""
    async with connected(port, context) as (reader, _), asyncio.timeout(30):
        return (await reader.readline()).decode().strip()


async def shown_by(port: int, context: ssl.SSLContext) -> str:
    """The name of the server's certificate."""
    async with connected(port, context) as (_, writer):
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return subject_of(certificate)


async def all_gone(listener: Listener) -> None:
    async with asyncio.timeout(30):
        while listener.connection_count:
            await asyncio.sleep(0.01)


def looked(context: TlsContext) -> list[str]:
    """What a change comes to: it counts once it has stood still."""
    with capture_logs() as logs:
        context.look()
        context.look()
    return [line["event"] for line in logs]


@on_every_loop
@pytest.mark.parametrize("auth", [ClientAuth.REQUESTED, ClientAuth.REQUIRED])
async def test_a_client_is_known_by_its_certificate(files: Files, auth: ClientAuth) -> None:
    alice = files.authority.write("alice.pem", "CN=alice,O=x")
    async with listening(tls=TlsContext(files.of(auth)), kind=Known) as listener:
        assert await named(listener.port, files.client(alice)) == "CN=alice,O=x"


@on_every_loop
async def test_nobody_is_known_where_certificates_are_only_asked_for(files: Files) -> None:
    alice = files.authority.write("alice.pem", "CN=alice")
    for auth, shown in ((ClientAuth.REQUESTED, None), (ClientAuth.NONE, alice)):
        async with listening(tls=TlsContext(files.of(auth)), kind=Known) as listener:
            assert await named(listener.port, files.client(shown)) == "nobody"


@on_every_loop
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("days", "alert", "reason"),
    [
        (None, "alert certificate required|handshake failure", "did not return a certificate"),
        ((-9, -1), "alert certificate expired", "certificate has expired"),
        ((1, 9), "alert bad certificate", "not yet valid"),
    ],
)
async def test_a_client_is_told_what_is_wrong_with_its_certificate(
    files: Files,
    version: ssl.TLSVersion,
    days: tuple[int, int] | None,
    alert: str,
    reason: str,
) -> None:
    """It says more before it hears of it; what is wrong is one line of the log."""
    shown = None
    if days is not None:
        shown = files.authority.write("wrong.pem", "CN=a", begins=days[0], ends=days[1])
    client = files.client(shown)
    client.maximum_version = version
    async with listening(tls=TlsContext(files.of(ClientAuth.REQUIRED))) as listener:
        with capture_logs() as logs:
            with pytest.raises(ssl.SSLError, match=f"(?i){alert.replace(' ', '[ _]')}"):
                async with connected(listener.port, client) as (reader, writer):
                    writer.write(b"x" * 100_000)
                    async with asyncio.timeout(30):
                        await reader.read(1)
            await all_gone(listener)
    assert [line["event"] for line in logs] == ["connection failed"]
    assert reason in logs[0]["reason"]


@on_every_loop
async def test_who_goes_on_after_an_alert_is_cut_off(files: Files) -> None:
    """Nothing is kept of what it says."""
    client = files.client()
    client.minimum_version = ssl.TLSVersion.TLSv1_3
    async with listening(tls=TlsContext(files.of(ClientAuth.REQUIRED))) as listener:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaking = client.wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        with contextlib.suppress(ssl.SSLWantReadError):
            shaking.do_handshake()
        writer.write(outgoing.read())
        while True:
            said = await reader.read(65536)
            assert said, "it goes on"
            incoming.write(said)
            try:
                shaking.do_handshake()
                break
            except ssl.SSLWantReadError:
                continue
        writer.write(outgoing.read())

        async def flood() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    shaking.write(b"x" * 16_000)
                    writer.write(outgoing.read())
                    await writer.drain()

        async with asyncio.timeout(5):  # the handshake's own time is longer
            await flood()
        writer.close()


@on_every_loop
async def test_a_renewed_certificate_counts_for_who_comes_next(files: Files) -> None:
    context = TlsContext(files.of())
    async with listening(tls=context) as listener:
        async with connected(listener.port, files.client()) as (reader, writer):
            files.renew("CN=second")
            assert looked(context) == ["tls_files_read_again"]
            assert await shown_by(listener.port, files.client()) == "CN=second"
            assert await echoed(reader, writer) == b"hello"
        assert looked(context) == []


async def test_whom_clients_are_signed_by_may_change(files: Files, tmp_path: Path) -> None:
    other = Authority.made(tmp_path, "CN=Other")
    alice, bob = files.authority.write("alice.pem", "CN=alice"), other.write("bob.pem", "CN=bob")
    client = {each: files.client(each) for each in (alice, bob)}
    context = TlsContext(files.of(ClientAuth.REQUIRED))
    async with listening(tls=context, kind=Known) as listener:
        assert await named(listener.port, client[alice]) == "CN=alice"
        files.trusted.write_bytes(other.pem)
        assert looked(context) == ["tls_files_read_again"]
        assert await named(listener.port, client[bob]) == "CN=bob"
        with pytest.raises(ssl.SSLError, match=r"(?i)unknown[ _]ca"):
            await named(listener.port, client[alice])
        await all_gone(listener)


@pytest.mark.parametrize("broken", ["certificate", "trusted"])
@pytest.mark.parametrize("how", ["other text", "gone", "cut short"])
def test_files_that_do_not_do_leave_the_old_in_force(
    files: Files, tmp_path: Path, broken: str, how: str
) -> None:
    context = TlsContext(files.of(ClientAuth.REQUIRED))
    before, path = context(), tmp_path / getattr(files, broken).name
    right = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "other text":
        path.write_text("no certificate")
    elif broken == "certificate":
        path.write_bytes(files.authority.write("x.pem", "CN=x").read_bytes()[:300])
    else:
        path.write_text("")
    assert looked(context) == ["tls_files_unusable"]
    assert looked(context) == [], "once"
    assert context() is before
    path.write_bytes(right + b"\n")
    assert looked(context) == ["tls_files_read_again"]
    assert context() is not before


def test_what_is_being_written_is_left_alone(files: Files) -> None:
    context = TlsContext(files.of())
    with capture_logs() as logs:
        for number in range(3):
            files.certificate.write_text("half of it" * (number + 1))
            context.look()
        files.renew("CN=second")
        context.look()
        context.look()
    assert [line["event"] for line in logs] == ["tls_files_read_again"]


@pytest.mark.parametrize("of", ["certificate", "trusted"])
def test_without_usable_files_there_is_no_context(files: Files, of: str) -> None:
    getattr(files, of).write_text("x")
    with pytest.raises(TlsError, match="in PEM"):
        TlsContext(files.of(ClientAuth.REQUIRED))


# --- certificates that are taken back ---


@on_every_loop
async def test_whose_certificate_is_taken_back_is_not_let_in(files: Files) -> None:
    alice, bob = (files.authority.write(f"{name}.pem", f"CN={name}") for name in ("alice", "bob"))
    files.crl = files.authority.write_list(alice)
    context = TlsContext(files.of(ClientAuth.REQUIRED))
    async with listening(tls=context, kind=Known) as listener:
        assert await named(listener.port, files.client(bob)) == "CN=bob"
        with capture_logs() as logs:
            with pytest.raises(ssl.SSLError, match=r"(?i)alert[ _]certificate[ _]revoked"):
                await named(listener.port, files.client(alice))
            await all_gone(listener)
        assert "certificate revoked" in logs[-1]["reason"]
        files.authority.write_list(bob)
        assert looked(context) == ["tls_files_read_again"]
        assert await named(listener.port, files.client(alice)) == "CN=alice"


@on_every_loop
async def test_who_is_in_by_a_certificate_that_is_taken_back_is_cut_off(files: Files) -> None:
    """Within seconds; others stay, and no session of TLS lets him in again."""
    alice, bob = (files.authority.write(f"{name}.pem", f"CN={name}") for name in ("alice", "bob"))
    files.crl = files.authority.write_list()
    contexts = TlsContexts()
    context = contexts.of(files.of(ClientAuth.REQUIRED))
    async with listening(tls=context, kind=Known) as listener:
        keeping = asyncio.create_task(
            contexts.keep_up(lambda _, gone: listener.close_revoked(gone))
        )
        client = files.client(alice)
        async with (
            connected(listener.port, client) as (reader, writer),
            connected(listener.port, files.client(bob)) as (other, of_other),
        ):
            for each in (reader, other):
                await each.readline()
            assert await echoed(reader, writer) == b"hello"
            with capture_logs() as logs:
                files.authority.write_list(alice)
                assert await closed(reader)
            assert ("connection closed", "its certificate was revoked") in [
                (line["event"], line.get("reason")) for line in logs
            ]
            assert await echoed(other, of_other) == b"hello"
        with pytest.raises(ssl.SSLError, match=r"(?i)revoked"):
            await named(listener.port, client)
        await all_gone(listener)
        keeping.cancel()


@contextlib.asynccontextmanager
async def holding() -> AsyncIterator[contextlib.ExitStack]:
    """Keeps connections to the end: one that ends without a farewell takes its session with it."""
    with contextlib.ExitStack() as stack:
        yield stack


def told(
    port: int,
    client: ssl.SSLContext,
    stack: contextlib.ExitStack,
    session: ssl.SSLSession | None = None,
) -> tuple[str, ssl.SSLSession | None, bool]:
    """Who the server says is there, by a client that can resume a session; blocks. Nothing where
    it hangs up. Also the session, and whether it was resumed."""
    plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
    connection = stack.enter_context(
        client.wrap_socket(plain, server_hostname="localhost", session=session)
    )
    try:
        said = connection.recv(100).decode().strip()
    except ConnectionError:
        said = ""
    found = said, connection.session, bool(connection.session_reused)
    if not said:
        connection.close()
    return found


@on_every_loop
@pytest.mark.parametrize("without_tickets", [True, False])
@pytest.mark.parametrize(
    ("list_days", "after_days", "reason"),
    [
        (None, 29, None),
        (None, 31, "its certificate is not good"),
        (None, -2, "its certificate is not good"),
        (9, 8, None),
        (9, 10, "its list of revoked certificates is out of date"),
    ],
)
async def test_a_resumed_session_is_only_as_good_as_its_certificate(
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
    without_tickets: bool,
    list_days: int | None,
    after_days: int,
    reason: str | None,
) -> None:
    """By TLS 1.2 sessions are resumed, and OpenSSL does not look again. Only the gateway's clock
    goes on here: a whole handshake is OpenSSL's."""
    alice = files.authority.write("alice.pem", "CN=alice")
    if list_days is not None:
        files.crl = files.authority.write_list(ends=list_days)
    client = files.client(alice)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    if without_tickets:
        client.options |= ssl.OP_NO_TICKET
    async with (
        listening(tls=TlsContext(files.of(ClientAuth.REQUIRED)), kind=Known) as listener,
        holding() as stack,
    ):
        port = listener.port
        said, session, _ = await asyncio.to_thread(told, port, client, stack)
        assert said == "CN=alice"
        later = time.time() + after_days * 86400
        monkeypatch.setattr(tls, "time", SimpleNamespace(time=lambda: later))
        with capture_logs() as logs:
            said, _, is_resumed = await asyncio.to_thread(told, port, client, stack, session)
            if reason is not None:
                async with asyncio.timeout(30):
                    while listener.connection_count > 1:
                        await asyncio.sleep(0.01)
        assert is_resumed
        if reason is None:
            assert said == "CN=alice"
            assert not logs
        else:
            assert not said
            assert [line["event"] for line in logs] == ["connection failed"]
            assert reason in logs[0]["reason"]
        said, _, is_resumed = await asyncio.to_thread(told, port, client, stack)
        assert (said, is_resumed) == ("CN=alice", False)


@on_every_loop
async def test_by_tls_1_3_no_session_is_resumed(files: Files) -> None:
    client = files.client(files.authority.write("alice.pem", "CN=alice"))
    async with (
        listening(tls=TlsContext(files.of(ClientAuth.REQUIRED)), kind=Known) as listener,
        holding() as stack,
    ):
        _, session, _ = await asyncio.to_thread(told, listener.port, client, stack)
        said, _, is_resumed = await asyncio.to_thread(told, listener.port, client, stack, session)
        assert (said, is_resumed) == ("CN=alice", False)


@pytest.mark.parametrize("how", ["gone", "cut short", "other text"])
async def test_a_list_that_changes_again_at_once_stops_nothing(
    files: Files, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What was read is what counts: who is on it is cut off, and the files are followed on."""
    alice = files.authority.write("alice.pem", "CN=alice")
    files.crl = crl = files.authority.write_list()
    contexts = TlsContexts()
    context = contexts.of(files.of(ClientAuth.REQUIRED))
    look = TlsContext.look

    def look_and_change(of: TlsContext) -> bool:
        has_read = look(of)
        if has_read and how == "gone":
            crl.unlink()
        elif has_read:
            crl.write_text("x" if how == "other text" else crl.read_text()[:60])
        return has_read

    async with listening(tls=context, kind=Known) as listener:
        keeping = asyncio.create_task(
            contexts.keep_up(lambda _, gone: listener.close_revoked(gone))
        )
        async with connected(listener.port, files.client(alice)) as (reader, _):
            await reader.readline()
            with monkeypatch.context() as patched:
                patched.setattr(TlsContext, "look", look_and_change)
                files.authority.write_list(alice)
                assert await closed(reader)
        before = context()
        files.authority.write_list()
        async with asyncio.timeout(30):
            while context() is before:
                assert not keeping.done(), keeping.exception()
                await asyncio.sleep(0.02)
        assert await named(listener.port, files.client(alice)) == "CN=alice"
        keeping.cancel()


@on_every_loop
async def test_a_certificate_that_cannot_be_read_counts_as_taken_back(files: Files) -> None:
    """Whether its client is there already or comes; others that are on a list are found, too."""
    alice, bob = (files.authority.write(f"{name}.pem", f"CN={name}") for name in ("alice", "bob"))
    strange = files.authority.write_of_version_2("strange.pem", "CN=strange")
    files.crl = files.authority.write_list()
    context = TlsContext(files.of(ClientAuth.REQUIRED))
    async with listening(tls=context, kind=Known) as listener, contextlib.AsyncExitStack() as stack:
        readers = {}
        for each in (strange, alice, bob, strange):
            reader, writer = await stack.enter_async_context(
                connected(listener.port, files.client(each))
            )
            assert await reader.readline() == f"CN={each.stem}\n".encode()
            readers[reader] = each, writer
        files.authority.write_list(alice)
        assert looked(context) == ["tls_files_read_again"]
        listener.close_revoked(context.revoked)
        for reader, (each, writer) in readers.items():
            if each == bob:
                assert await echoed(reader, writer) == b"hello"
            else:
                assert await closed(reader)
        late, _ = await stack.enter_async_context(connected(listener.port, files.client(strange)))
        assert await closed(late) or not await late.read()
        while listener.connection_count > 1:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("what", ["out of date", "another's"])
async def test_without_a_list_that_counts_nobody_is_let_in(
    files: Files, tmp_path: Path, what: str
) -> None:
    alice = files.authority.write("alice.pem", "CN=alice")
    if what == "out of date":
        files.crl = files.authority.write_list(ends=-1)
    else:
        files.crl = Authority.made(tmp_path, "CN=Other").write_list()
    async with listening(tls=TlsContext(files.of(ClientAuth.REQUIRED))) as listener:
        with capture_logs() as logs:
            with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
                await named(listener.port, files.client(alice))
            await all_gone(listener)
        assert ("expired" if what == "out of date" else "unable to get certificate CRL") in logs[
            -1
        ]["reason"]


def test_what_is_no_list_is_refused(files: Files) -> None:
    lists = files.authority.write_list().read_text()
    for text in ("", "no list", lists.replace("M", "x"), lists + files.trusted.read_text()):
        files.crl = files.trusted.with_name("wrong.crl")
        files.crl.write_text(text)
        with pytest.raises(TlsError, match=r"penstock\.ssl\.crl\.location"):
            TlsContext(files.of(ClientAuth.REQUIRED))


async def test_equal_files_share_a_context_that_keeps_up(files: Files) -> None:
    contexts = TlsContexts()
    one, other = contexts.of(files.of()), contexts.of(files.of())
    assert one is other
    before = one()
    keeping = asyncio.create_task(contexts.keep_up(lambda *_: None))
    files.renew("CN=second")
    async with asyncio.timeout(30):
        while one() is before:
            await asyncio.sleep(0.02)
    keeping.cancel()
