"""One Pulsar connection on asyncio: bytes in, commands begun in order, answers out as they come.

It starts handlers and writes what they return; it decides nothing about topics, entries or offsets.
CONNECT comes first, once; where clients log in, nothing more is read before it is answered. PING is
answered at once, and a client that is silent is asked whether it is there. Back-pressure is by not
reading: while too much of a client's is unanswered, while it does not take its answers, while the
memory that all requests share is used up.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

import structlog
from google.protobuf.message import Message

from core.errors import Refusal
from core.ports.log import StoreUnavailable
from core.security.principal import ANONYMOUS, Caller, java_host
from core.version import VERSION
from gateway.framing import FrameError, Framer, make_scratch
from gateway.listener import ConnectionLimits
from gateway.metrics.requests import RequestObserver
from gateway.pulsar.api import Refused, Registry, Served
from gateway.pulsar.commands import (
    LATEST_PROTOCOL_VERSION,
    Buffer,
    CommandType,
    MalformedCommand,
    ProtocolVersion,
    ServerError,
)
from gateway.pulsar.commands_pb2 import (
    CommandAuthResponse,
    CommandConnect,
    CommandConnected,
    CommandError,
    CommandPing,
    CommandPong,
    FeatureFlags,
)
from gateway.pulsar.errors import server_error
from gateway.pulsar.framing import (
    DEFAULT_MAX_MESSAGE_SIZE,
    Frame,
    encode_frame,
    max_frame_size,
    parse_frame,
)
from gateway.pulsar.login import Door, Login
from gateway.pulsar.proxied import named_elsewhere
from gateway.pulsar.rights import close_without_right
from gateway.pulsar.session import UNASKED, Services, Session
from gateway.request_memory import RequestMemory
from gateway.runtime.rights import Rights
from gateway.runtime.throttling import Hold, Throttles
from gateway.tls import peer_certificate

log = structlog.get_logger(__name__)

KEEP_ALIVE_S: Final = 30.0
"""Of silence, until a client is asked whether it is there; after as much again it is not."""
_LONGEST_HOLD_S: Final = 10.0  # quotas: clients ask every thirty seconds whether a broker is there
_PROBE_S: Final = 5.0  # Pulsar's connectionLivenessCheckTimeoutMillis
_MOST_RUNNING: Final = 64  # commands begun and not answered, SENDs apart
_MOST_SENT: Final = 1_000  # SENDs without a receipt (maxPendingPublishRequestsPerConnection)
_MOST_OUTGOING: Final = 256 * 1024  # bytes of one turn of the loop, before they go to the transport
_FLUSH_TIMEOUT_S: Final = 5.0
_VERSION_LOGGED: Final = 100  # characters of what a client calls itself
_BEFORE_CONNECT: Final = 64 * 1024  # bytes of the first command
_PING: Final = encode_frame(CommandPing())
_PONG: Final = encode_frame(CommandPong())
_NOT_FOR_BROKERS: Final = frozenset(
    {
        CommandType.CONNECTED,
        CommandType.SEND_RECEIPT,
        CommandType.SEND_ERROR,
        CommandType.MESSAGE,
        CommandType.SUCCESS,
        CommandType.ERROR,
        CommandType.PRODUCER_SUCCESS,
    }
)


RightsOf = Callable[[Caller], tuple[Rights, ...]]
"""Those of who asks, and of who passes it on."""


def _unasked_error(code: ServerError, reason: str) -> CommandError:
    return CommandError(request_id=UNASKED, error=code, message=reason)


def _observe_nothing(*_: object) -> None:
    """For a front-end without metrics."""


class PulsarFrontEnd:
    """What the connections of one listener share. `gateway.front_ends.FrontEnd`.

    registry: the commands to serve, complete. services: handed to handlers with their session.
    memory: shared with the other front-ends. observer: called after each answer, with seconds and
    sizes in bytes. door: what logins share; None where nobody is asked who he is. rights_of: gives
    a caller's rights; None where everybody may do everything. throttles: of clients that have
    quotas; None where nobody is held to any.
    """

    def __init__(
        self,
        registry: Registry,
        services: Services,
        limits: ConnectionLimits,
        memory: RequestMemory,
        observer: RequestObserver = _observe_nothing,
        keep_alive_s: float = KEEP_ALIVE_S,
        door: Door | None = None,
        rights_of: RightsOf | None = None,
        throttles: Throttles | None = None,
    ) -> None:
        self.registry = registry
        self.services = services
        self.limits = limits
        self.memory = memory
        self.observer = observer
        self.keep_alive_s = keep_alive_s
        self.door = door
        self.rights_of = rights_of
        self.inside: set[Session] = set()  # of those that are asked for rights
        self.throttles = throttles
        self.scratch = make_scratch()
        self.running: set[asyncio.Task[Any]] = set()
        self._accepted = 0

    def connection(self, on_lost: Callable[[], None]) -> "PulsarConnection":
        """The protocol object of a new connection."""
        self._accepted += 1
        return PulsarConnection(self, on_lost, self._accepted)

    def on_rights_changed(self) -> None:
        """ACLs have changed, at some broker: what has gone with them ends."""
        for session in list(self.inside):
            close_without_right(session)
        self.services.topic_lists.look()

    async def drain(self, timeout_s: float) -> None:
        """Wait for handlers whose clients have gone, up to a time."""
        if self.running:
            await asyncio.wait(set(self.running), timeout=timeout_s)


class PulsarConnection(asyncio.BufferedProtocol):
    """The asyncio shell around one client. `gateway.listener.Connection`, `session.Outlet`."""

    def __init__(self, front_end: PulsarFrontEnd, on_lost: Callable[[], None], number: int) -> None:
        self._front_end = front_end
        self._limits = front_end.limits
        self._memory = front_end.memory
        self._on_lost = on_lost
        self._framer = Framer(max_frame_size(), front_end.scratch)
        self._session = Session(front_end.services, self, number)
        self._login: Login | None = None  # None where nobody is asked who he is
        self._login_timer: asyncio.TimerHandle | None = None  # until somebody has logged in
        self._is_logging_in = False  # CONNECT has come, and is not answered
        self._throttles = front_end.throttles
        self._reading: Hold | None = None  # None until a quota limits what the client sends
        self._delivering: Hold | None = None  # or what it is sent
        self._waiting: deque[tuple[memoryview, float]] = deque()  # received, not begun
        self._running = 0  # begun and not answered, SENDs apart
        self._sent = 0  # SENDs without a receipt
        self._bytes_held = 0
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._is_delivering = False  # there is a MESSAGE among what goes out
        self._is_connected = False
        self._has_said_hello = False
        self._is_reading = True
        self._is_write_blocked = False
        self._is_finishing = False
        self._is_closing = False
        self._is_starting = False  # a handler begins in the next turn of the loop
        self._is_going_to_write = False
        self._is_lost = False
        self._has_heard = False  # since the last look
        self._is_asked = False  # whether it is there
        self._is_late = False  # a frame was incomplete at the last look, and is the same still
        self._keep_alive: asyncio.TimerHandle | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._partial_bytes = 0  # as counted by the request memory

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_high_water_bytes)
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        self._session.peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._session.caller = Caller(ANONYMOUS, java_host(self._session.peer))
        if (door := self._front_end.door) is not None:
            self._login = Login(door, self._session, peer_certificate(self._transport))
            self._login_timer = self._loop.call_later(door.timeout_s, self._close_unless_logged_in)
            self._framer.max_bytes = min(self._framer.max_bytes, door.max_receive_bytes)
        self._keep_alive = self._loop.call_later(self._front_end.keep_alive_s, self._look)
        self._is_connected = True
        self._memory.join(self)
        if self._is_finishing:
            self._close()
        self.adjust_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._framer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_lost or self._is_finishing or self._is_closing:
            return
        framer = self._framer
        self._has_heard = True
        frames = framer.buffer_updated(nbytes)
        held = framer.held_bytes
        change = held - self._partial_bytes
        self._partial_bytes = held
        if frames:
            self._is_late = False
            now = self._loop.time()
            arrived = 0
            for frame in frames:
                arrived += len(frame)
                self._waiting.append((frame, now))
            self._bytes_held += arrived
            change += arrived
        if change:
            self._memory.hold(change)
        if frames:
            self._serve()
        if framer.error is not None:
            self.close_for(str(framer.error))
        self.adjust_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_write_blocked = True
        self.adjust_reading()
        # Not now: it is called in the middle of a write, and who holds most is closed.
        self._loop.call_soon(self._memory.look, self)

    def resume_writing(self) -> None:
        self._is_write_blocked = False
        self._serve()
        self.adjust_reading()
        self._deliver_again()

    def _deliver_again(self) -> None:
        for each in tuple(self._session.on_writable):
            each()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        for timer in (self._keep_alive, self._probe, self._abort_timer, self._login_timer):
            if timer is not None:
                timer.cancel()
        for hold in (self._reading, self._delivering):
            if hold is not None:
                hold.drop()
        if self._login is not None:
            self._login.end()
        self._drop_waiting()
        self._front_end.inside.discard(self._session)
        self._session.end()
        self._outgoing.clear()
        self._memory.leave(self)
        self._memory.hold(-self._partial_bytes)
        self._partial_bytes = 0
        self._on_lost()

    # The listener's side.

    def finish(self) -> None:
        self._is_finishing = True
        if self._is_connected and not self._is_lost:
            self._drop_waiting()
            self._close_if_done()
            self.adjust_reading()

    def abort(self) -> None:
        if self._is_connected:
            self._transport.abort()

    def close_for(self, reason: str) -> None:
        """Close, with one line in the log; what was written is still sent."""
        if self._is_closing or self._is_lost:
            return
        log.warning(
            "connection closed",
            reason=reason,
            peer=self._session.peer,
            client=self._session.client_version,
        )
        self._drop_waiting()
        self._close()

    def _close(self) -> None:
        """Close once what was written is sent, or soon."""
        if not self._is_closing:
            self._flush()
            self._is_closing = True
            self._transport.close()
            self._abort_timer = self._loop.call_later(_FLUSH_TIMEOUT_S, self._transport.abort)

    def _close_if_done(self) -> None:
        """At the end: once all is answered, tell the client to go elsewhere with what it has."""
        if self._is_closing or self._is_lost:
            return
        if self._is_finishing and not self._running and not self._sent:
            for each in self._session.attached:
                self.write(encode_frame(each.closing()))
            self._close()

    def _drop_waiting(self) -> None:
        for frame, _ in self._waiting:
            self.hold(-len(frame))
        self._waiting.clear()

    @property
    def stuck_bytes(self) -> int:
        """See RequestHolder."""
        if self._is_lost or self._is_closing:
            return 0
        if self._is_held or self._is_write_blocked:
            return self._partial_bytes + sum(len(frame) for frame, _ in self._waiting)
        return self._partial_bytes

    @property
    def _is_held(self) -> bool:
        """Whether a quota leaves it unread, and nothing of it is begun."""
        return self._reading is not None and self._reading.is_on

    # Reading.

    def adjust_reading(self) -> None:
        """Read while there is room: on this connection, and in the memory all of them share."""
        if self._is_lost or self._transport.is_closing():
            return
        wanted = (
            not self._is_finishing
            and not self._is_closing
            and not self._is_logging_in
            and not self._is_write_blocked
            and not self._memory.is_full
            and not self._is_held
            and self._running < _MOST_RUNNING
            and self._sent < _MOST_SENT
            and self._bytes_held < self._limits.max_in_flight_bytes_per_connection
        )
        if wanted != self._is_reading:
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def hold(self, count: int) -> None:
        """See Outlet."""
        self._bytes_held += count
        self._memory.hold(count)

    def begin(self, count: int) -> None:
        """See Outlet."""
        self._sent += count
        if count < 0:
            if self._is_finishing:
                self._loop.call_soon(self._close_if_done)  # behind the receipt
            elif not self._is_reading:
                self.adjust_reading()

    # Whether the client is there.

    def _look(self) -> None:
        """Every thirty seconds."""
        if not self._has_said_hello and self._login is None:
            self.close_for(f"no CONNECT within {self._front_end.keep_alive_s:g} s")
            return
        if self._is_reading:
            if self._framer.is_partial and self._is_late:
                self.close_for("a command was not complete in time")
                return
            self._is_late = self._framer.is_partial
            if self._has_heard:
                self._is_asked = False
            elif self._is_asked:
                self.close_for("the client does not answer")
                return
            else:
                self._ask()
            self._has_heard = False
        self._keep_alive = self._loop.call_later(self._front_end.keep_alive_s, self._look)

    def _close_unless_logged_in(self) -> None:
        assert self._front_end.door is not None, "it has set the time"
        self.close_for(f"no login within {self._front_end.door.timeout_s:g} s")

    def _ask(self) -> None:
        # The first version of the protocol knows no PING.
        if self._session.protocol_version >= ProtocolVersion.KEEP_ALIVE:
            self._is_asked = True
            self.write(_PING)

    def probe(self) -> None:
        """See Outlet."""
        if self._probe is None and self._is_connected and not self._is_lost:
            self._has_heard = False
            self._ask()
            self._probe = self._loop.call_later(_PROBE_S, self._judge)

    def _judge(self) -> None:
        self._probe = None
        if self._is_asked and not self._has_heard and self._is_reading:
            self.close_for("the client does not answer, and another has come with its name")

    # Serving.

    def _serve(self) -> None:
        """Begin what may begin, in order."""
        self._begin_waiting()
        if self._memory.is_full:
            self._memory.look(self)

    def _begin_waiting(self) -> None:
        waiting = self._waiting
        while (
            waiting
            and not self._is_starting
            and not self._is_logging_in
            and not self._is_closing
            and not self._is_write_blocked
            and not self._is_held
            and self._running < _MOST_RUNNING
        ):
            data, received = waiting.popleft()
            size = len(data)
            try:
                limit = {} if self._has_said_hello else {"max_command_size": _BEFORE_CONNECT}
                frame = parse_frame(data, **limit)
                self._begin(frame, size, received)
            except (FrameError, MalformedCommand) as reason:
                self.hold(-size)
                self.close_for(str(reason))
                return

    def _begin(self, frame: Frame, size: int, received: float) -> None:
        """What is answered at once is; a coroutine begins before the next command does. Raises
        MalformedCommand."""
        command_type, message = frame.command
        if not self._has_said_hello:
            self._greet(command_type, message)
        elif command_type is CommandType.PING:
            self.write(_PONG)
        elif command_type is CommandType.PONG:
            pass
        elif command_type is CommandType.AUTH_RESPONSE and self._login is not None:
            self._start(self._log_in_again(self._login, message))
        elif command_type is CommandType.CONNECT or command_type in _NOT_FOR_BROKERS:
            raise MalformedCommand(f"{command_type.name} of a client that is connected")
        elif (served := self._front_end.registry.find(command_type)) is None:
            self._answer_unserved(command_type, message)
        elif served.waits:
            self._running += 1
            self._is_starting = True
            self._start(self._run(served, message, size, received))
            self._loop.call_soon(self._go_on)  # behind its first step
            return
        else:
            self._call(served, frame, size, received)
            if (
                served.type is CommandType.SEND
                and self._throttles is not None
                and self._throttles.rules is not None
            ):
                self._use_produced(self._throttles, size)
        self.hold(-size)

    # Quotas: those of users. What is sent counts where it was delivered, read again or not.

    def _use_produced(self, throttles: Throttles, count: int) -> None:
        if self._reading is None:
            self._reading = Hold(throttles, self._read_again, _LONGEST_HOLD_S)
        limits = self._reading.limits_of(self._session.caller.principal.name, None)
        if limits is not None and limits.produce is not None:
            self._reading.use(limits.produce, count)

    def _read_again(self) -> None:
        if not self._is_lost:
            self._serve()
            self.adjust_reading()

    def _use_consumed(self, throttles: Throttles, count: int) -> None:
        if self._delivering is None:
            self._delivering = Hold(throttles, self._deliver_again)
        limits = self._delivering.limits_of(self._session.caller.principal.name, None)
        if limits is not None and limits.consume is not None:
            self._delivering.use(limits.consume, count)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._front_end.running.add(task)
        task.add_done_callback(self._front_end.running.discard)

    def _go_on(self) -> None:
        self._is_starting = False
        if not self._is_lost:
            self._serve()
            self.adjust_reading()

    def _greet(self, command_type: CommandType, message: Any) -> None:
        if command_type is not CommandType.CONNECT:
            raise MalformedCommand(f"{command_type.name} before CONNECT")
        connect: CommandConnect = message
        session = self._session
        session.client_version = connect.client_version[:_VERSION_LOGGED]
        session.protocol_version = max(0, min(connect.protocol_version, LATEST_PROTOCOL_VERSION))
        session.features = connect.feature_flags
        self._has_said_hello = True
        if self._login is None:
            self._welcome(connect)
        else:
            self._is_logging_in = True
            self._start(self._log_in(self._login, connect))

    async def _log_in(self, login: Login, connect: CommandConnect) -> None:
        """The task of CONNECT, where clients log in."""
        try:
            refused = await login.connect(connect)
        except Exception as failure:  # noqa: BLE001 - a bug costs this client only
            self._log_failure(CommandType.CONNECT, failure)
            self.abort()
            return
        if self._is_lost or self._is_closing:
            return
        if refused is not None:
            self._turn_away(refused)
            return
        assert self._login_timer is not None, "the login was timed"
        self._login_timer.cancel()
        self._framer.max_bytes = max_frame_size()
        self._is_logging_in = False
        self._welcome(connect)
        self._serve()
        self.adjust_reading()

    async def _log_in_again(self, login: Login, response: CommandAuthResponse) -> None:
        """The task of AUTH_RESPONSE; other commands go on beside it."""
        try:
            refused = await login.answer(response)
        except MalformedCommand as reason:
            self.close_for(str(reason))
        except Exception as failure:  # noqa: BLE001 - a bug costs this client only
            self._log_failure(CommandType.AUTH_RESPONSE, failure)
            self.abort()
        else:
            if refused is not None and not self._is_lost and not self._is_closing:
                self._turn_away(refused)

    def _turn_away(self, refused: Refused) -> None:
        self._session.send(_unasked_error(refused.error, refused.message))
        self._drop_waiting()
        self._close()

    def _welcome(self, connect: CommandConnect) -> None:
        session = self._session
        if (rights_of := self._front_end.rights_of) is not None:
            session.rights = rights_of(session.caller)
            self._front_end.inside.add(session)
        if connect.proxy_to_broker_url:
            cluster = session.services.cluster
            if (meant := named_elsewhere(connect.proxy_to_broker_url, cluster)) is not None:
                reason = f"This is not the broker that was meant, {connect.proxy_to_broker_url}"
                session.send(_unasked_error(ServerError.SERVICE_NOT_READY, reason))
                self.close_for(f"broker {meant.broker_id} is meant, not this one")
                return
        session.send(
            CommandConnected(
                server_version=f"Penstock {VERSION}",
                protocol_version=session.protocol_version,
                max_message_size=DEFAULT_MAX_MESSAGE_SIZE,
                feature_flags=FeatureFlags(
                    supports_topic_watchers=True,
                    supports_get_partitioned_metadata_without_auto_creation=True,
                ),
            )
        )

    def _call(self, served: Served, frame: Frame, size: int, received: float) -> None:
        """A handler that does not wait."""
        message = frame.command.message
        arguments = (frame.entry,) if served.type is CommandType.SEND else ()
        try:
            answer = served.handler(message, self._session, *arguments)
        except Exception as failure:  # noqa: BLE001 - a handler's bug costs its own client only
            self._log_failure(served.type, failure)
            self.abort()
            return
        if answer is not None:
            self._answer(served, message, answer, size, received)

    async def _run(self, served: Served, message: Any, size: int, received: float) -> None:
        """The task of a command whose handler waits."""
        try:
            try:
                answer = await served.handler(message, self._session)
            except StoreUnavailable as away:
                reason = f"The database is away: {away}"
                answer = Refused(ServerError.SERVICE_NOT_READY, reason)
            if answer is not None and not self._is_lost:
                self._answer(served, message, answer, size, received)
        except Exception as failure:  # noqa: BLE001 - a handler's bug costs its own client only
            self._log_failure(served.type, failure)
            self.abort()
        finally:
            self._running -= 1
            self.hold(-size)
            if not self._is_lost:
                self._serve()
                self._close_if_done()
                self.adjust_reading()

    def _answer(
        self,
        served: Served,
        message: Any,
        answer: Message | Refused | Refusal,
        size: int,
        at: float,
    ) -> None:
        if isinstance(answer, Refusal):
            answer = Refused(server_error(answer.error), answer.message or answer.error.name)
        if isinstance(answer, Refused):
            answer = CommandError(
                request_id=message.request_id, error=answer.error, message=answer.message
            )
        self.observe(served.type, at, size, self._session.send(answer))

    def _answer_unserved(self, command_type: CommandType, message: Any) -> None:
        """An ERROR where the client waits for one by a request's id; else it cannot go on."""
        if "request_id" not in message.DESCRIPTOR.fields_by_name:
            raise MalformedCommand(f"{command_type.name} is not served")
        reason = f"{command_type.name} is not served"
        log.info("command refused", reason=reason, peer=self._session.peer)
        error = ServerError.NOT_ALLOWED_ERROR
        self._session.send(CommandError(request_id=message.request_id, error=error, message=reason))

    def observe(self, command_type: int, received: float, request_bytes: int, sent: int) -> None:
        """See Outlet."""
        seconds = self._loop.time() - received
        version = self._session.protocol_version
        self._front_end.observer(command_type, version, seconds, request_bytes, sent)

    def _log_failure(self, command_type: CommandType, failure: BaseException) -> None:
        log.error(
            "command failed",
            command=command_type.name,
            peer=self._session.peer,
            client=self._session.client_version,
            exc_info=(type(failure), failure, failure.__traceback__),
        )

    # Writing.

    @property
    def is_writable(self) -> bool:
        """See Outlet."""
        return (
            not self._is_write_blocked
            and not self._is_closing
            and not self._is_lost
            and (self._delivering is None or not self._delivering.is_on)
        )

    def write(self, *pieces: Buffer) -> None:
        """See Outlet. What is written in one turn of the loop goes out together."""
        if self._is_closing or self._is_lost:
            return
        self._outgoing += pieces
        self._outgoing_bytes += sum(map(len, pieces))
        if self._outgoing_bytes >= _MOST_OUTGOING:
            self._flush()
        elif not self._is_going_to_write:
            self._is_going_to_write = True
            self._loop.call_soon(self._flush_later)

    def deliver(self, *pieces: Buffer) -> None:
        """See Outlet."""
        self._is_delivering = True
        self.write(*pieces)
        if self._throttles is not None and self._throttles.rules is not None:
            self._use_consumed(self._throttles, sum(map(len, pieces)))

    def _flush_later(self) -> None:
        self._is_going_to_write = False
        self._flush()

    def _flush(self) -> None:
        outgoing = self._outgoing
        if self._is_delivering:
            self._is_delivering = False
            if self._front_end.services.cluster.has_lapsed:
                # It stood still between the decision and here: others have the topics by now.
                self.abort()
                return
        if outgoing and not self._is_closing and not self._is_lost:
            self._outgoing = []
            self._outgoing_bytes = 0
            if len(outgoing) == 1:
                self._transport.write(outgoing[0])
            else:
                self._transport.writelines(outgoing)
