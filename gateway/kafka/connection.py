"""One Kafka connection on asyncio: bytes in, requests served in order, answers out in order.

It starts handlers and writes what they return; it decides nothing about topics, records or offsets.
Order is Kafka's: a request starts when every earlier one of its connection is answered (Kafka mutes
the channel), but requests of an API that allows it (`runs_side_by_side`) start beside each other,
so that they join one flush, and answers to many at once are sent together
(`answer_bursts.py`). Back-pressure is by not reading, and by not starting while
answers are unsent.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import structlog

from core.security.names import MalformedName, subject_of
from core.security.principal import ANONYMOUS, Principal
from core.security.principal_mapping import PROPERTY as MAPPING_RULES
from core.security.principal_mapping import PrincipalMapping
from gateway.framing import Framer, make_scratch
from gateway.kafka import codec
from gateway.kafka.answer_bursts import AnswerBurst
from gateway.kafka.api import CLOSE_CONNECTION, Api, LastResponse, Registry
from gateway.kafka.bare_tokens import BARE_TOKEN, BareToken, header_of_bare_token
from gateway.kafka.codec import Buffer, MalformedRequest, RequestHeader
from gateway.kafka.context import ClientSoftware, RequestContext, Services, shown_host
from gateway.kafka.login import Door, Login
from gateway.kafka.pipelined_requests import PipelinedRequests
from gateway.kafka.rights import KafkaRights
from gateway.kafka.throttling import Throttle, Timed, Usage
from gateway.listener import ConnectionLimits as ConnectionLimits
from gateway.metrics.requests import RequestObserver
from gateway.request_memory import RequestMemory
from gateway.runtime.acls import Acls
from gateway.runtime.rights import RefusalObserver
from gateway.runtime.throttling import Throttles
from gateway.runtime.users import shown
from gateway.tls import peer_certificate

log = structlog.get_logger(__name__)

_CONTEXTS_KEPT: Final = 32
_FLUSH_TIMEOUT_S: Final = 5.0
_CLIENT_ID_LOGGED: Final = 100  # characters; a client may send 32,767


def _observe_nothing(*_: object) -> None:
    """For a front-end without metrics."""


class KafkaFrontEnd:
    """What the connections of one listener share. `gateway.front_ends.FrontEnd`.

    registry: the APIs to serve, complete. services: handed to handlers with each request.
    memory: shared with the other front-ends. observer: called after each answer, with seconds and
    sizes in bytes. door: what logins share; None where nobody is asked who he is. names: whom
    certificates stand for, where clients are known by them. acls: by which clients may do things;
    None where all may do everything. on_refused: counts refusals. throttles: of clients that have
    quotas; None where nobody is held to any.
    """

    def __init__(
        self,
        registry: Registry,
        services: Services,
        limits: ConnectionLimits,
        memory: RequestMemory,
        observer: RequestObserver = _observe_nothing,
        door: Door | None = None,
        names: PrincipalMapping | None = None,
        acls: Acls | None = None,
        on_refused: RefusalObserver = _observe_nothing,
        throttles: Throttles | None = None,
    ) -> None:
        self.registry = registry
        self.services = services
        self.limits = limits
        self.memory = memory
        self.observer = observer
        self.door = door
        self.names = names
        self.acls = acls
        self.on_refused = on_refused
        self.throttles = throttles
        self.scratch = make_scratch()
        self.running: set[asyncio.Task[Any]] = set()
        self._numbers = itertools.count(1)

    def beside(
        self, services: Services, door: Door | None, names: PrincipalMapping | None = None
    ) -> "KafkaFrontEnd":
        """That of another listener of the process, whose connections are numbered with these."""
        other = KafkaFrontEnd(
            self.registry,
            services,
            self.limits,
            self.memory,
            self.observer,
            door,
            names,
            self.acls,
            self.on_refused,
            self.throttles,
        )
        other._numbers = self._numbers
        return other

    def connection(self, on_lost: Callable[[], None]) -> "KafkaConnection":
        """The protocol object of a new connection."""
        return KafkaConnection(self, on_lost, next(self._numbers))

    async def drain(self, timeout_s: float) -> None:
        """Wait for handlers whose clients have gone (no Produce is cancelled), up to a time."""
        if self.running:
            await asyncio.wait(set(self.running), timeout=timeout_s)


class _Request:
    """A request received: its frame, and from its start on its handler and answer."""

    __slots__ = (
        "api",
        "frame",
        "header",
        "is_answered",
        "is_of_burst",
        "key",
        "received",
        "response",
        "size",
        "task",
        "usage",
    )

    def __init__(self, frame: memoryview, received: float) -> None:
        self.frame = frame
        self.size = len(frame)
        self.received = received
        self.key = int.from_bytes(frame[:2], "big", signed=True)  # Kafka's API key
        self.header: RequestHeader | None = None
        self.api: Api | None = None
        self.task: asyncio.Task[None] | None = None
        self.response: Any = None
        self.is_answered = False
        self.is_of_burst = False
        self.usage: Usage | None = None  # None where no quota limits the client


class KafkaConnection(asyncio.BufferedProtocol):
    """The asyncio shell around one client. `gateway.listener.Connection`.

    number: of the order in which connections were accepted.
    """

    def __init__(self, front_end: KafkaFrontEnd, on_lost: Callable[[], None], number: int) -> None:
        self._front_end = front_end
        self._number = number
        self._limits = front_end.limits
        self._memory = front_end.memory
        self._on_lost = on_lost
        self._framer = Framer(self._limits.socket_request_max_bytes, front_end.scratch)
        self._waiting: deque[_Request] = deque()  # received, not started
        self._running: deque[_Request] = deque()  # started, not answered; in order
        self._behind = PipelinedRequests(self._waiting)
        self._bytes_in_flight = 0
        self._software: ClientSoftware | None = None
        self._known_as = ANONYMOUS  # by a certificate
        self._login: Login | None = None  # None where nobody is asked who he is
        self._throttles = front_end.throttles
        self._throttle: Throttle | None = None  # None until a quota limits the client
        self._rights: KafkaRights | None = None
        self._contexts: dict[tuple[int, int, str], RequestContext] = {}
        self._client_id = ""  # the latest request's, for the log
        self._peer = "?"
        self._is_reading = True
        self._is_write_blocked = False
        self._is_finishing = False
        self._is_connected = False
        self._is_lost = False
        self._is_going_on = False  # in the next turn of the loop
        self._failure: str | None = None  # why to close once everything before it is answered
        self._idle_timer: asyncio.TimerHandle | None = None
        self._partial_timer: asyncio.TimerHandle | None = None
        self._abort_timer: asyncio.TimerHandle | None = None
        self._login_timer: asyncio.TimerHandle | None = None
        self._partial_bytes = 0  # as counted by the request memory

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._burst = AnswerBurst(self._write, self._is_asked_for_more)
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_high_water_bytes)
        host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        self._peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._active_at = self._loop.time()
        self._idle_timer = self._loop.call_later(
            self._limits.connections_max_idle_ms / 1000, self._close_if_idle
        )
        self._is_connected = True
        if (door := self._front_end.door) is not None:
            self._login = Login(door, self, self._peer, self._on_logged_in)
            self._framer.max_bytes = min(self._framer.max_bytes, door.max_receive_bytes)
            self._login_timer = self._loop.call_later(door.timeout_s, self._close_unless_logged_in)
        self._memory.join(self)
        if (names := self._front_end.names) is not None:
            self._known_by_certificate(names)
        if self._is_finishing:
            self._close()
        self.adjust_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._framer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        framer = self._framer
        if self._is_lost or self._is_finishing or self._failure is not None:
            return
        now = self._active_at = self._loop.time()
        frames = framer.buffer_updated(nbytes)
        arrived = 0
        for frame in frames:
            arrived += len(frame)
            self._waiting.append(_Request(frame, now))
        self._bytes_in_flight += arrived
        held = framer.held_bytes
        if arrived or held != self._partial_bytes:
            change = arrived + held - self._partial_bytes
            self._partial_bytes = held
            self._memory.hold(change)
        self._watch_partial(bool(frames))
        if frames or framer.error is not None:
            self._serve()
            self._behind.look()
            if framer.error is not None and self._failure is None:
                self._failure = str(framer.error)
            self._close_if_done()
            self.adjust_reading()

    def eof_received(self) -> bool:
        return False  # a client that shuts its half has gone, as in Kafka: the transport closes

    def pause_writing(self) -> None:
        self._is_write_blocked = True
        # Not now: it is called in the middle of a write, and who holds most is closed.
        self._loop.call_soon(self._memory.look, self)

    def resume_writing(self) -> None:
        self._is_write_blocked = False
        self._serve()
        self._close_if_done()
        self.adjust_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        for timer in (
            self._idle_timer,
            self._partial_timer,
            self._abort_timer,
            self._login_timer,
        ):
            if timer is not None:
                timer.cancel()
        if self._front_end.door is not None:
            self._front_end.door.leave(self)
        if self._throttle is not None:
            self._throttle.drop()
        for request in (*self._waiting, *(r for r in self._running if r.is_answered)):
            self._let_go(request)
        self._waiting.clear()
        self._burst.drop()
        self._cancel_long_polls()
        self._memory.leave(self)
        self._memory.hold(-self._partial_bytes)
        self._partial_bytes = 0
        self._on_lost()

    # The listener's side.

    def finish(self) -> None:
        self._is_finishing = True
        if self._is_connected and not self._is_lost:
            self._drop_waiting()
            self._cancel_long_polls()
            self._answer()
            self._close_if_done()
            self.adjust_reading()

    def abort(self) -> None:
        if self._is_connected:
            self._transport.abort()

    def close_for(self, reason: str) -> None:
        """Close, with one line in the log; answers already written are still sent."""
        if self._abort_timer is not None:
            return  # it is closing already, and has said why
        self._log_closing(reason)
        self._is_finishing = True
        self._drop_waiting()
        self._close()

    def _close(self) -> None:
        """Close once what was written is sent, or soon."""
        if self._abort_timer is None:
            self._burst.end()
            self._transport.close()
            self._abort_timer = self._loop.call_later(_FLUSH_TIMEOUT_S, self._transport.abort)

    def _close_if_done(self) -> None:
        """Close after the last answer, if nothing more is to come."""
        if self._running or self._waiting or self._abort_timer is not None:
            return
        if self._failure is not None:
            self.close_for(self._failure)
        elif self._is_finishing:
            self._close()

    def _drop_waiting(self) -> None:
        for request in self._waiting:
            self._let_go(request)
        self._waiting.clear()

    def _cancel_long_polls(self) -> None:
        """The other handlers run to their end: a Produce may be in a flush already.

        A group forgets who waited there, not what they said: its member stays until its session
        ends, as in Kafka.
        """
        for request in self._running:
            if request.task is not None and request.api is not None and request.api.is_long_poll:
                request.task.cancel()
                self._finished(request, CLOSE_CONNECTION)

    @property
    def stuck_bytes(self) -> int:
        """See RequestHolder."""
        if self._is_lost or self._abort_timer is not None:
            return 0
        if self._is_polling:
            return self._partial_bytes + self._bytes_in_flight
        if self._is_held or self._is_write_blocked:
            return self._partial_bytes + sum(request.size for request in self._waiting)
        return self._partial_bytes

    @property
    def _is_held(self) -> bool:
        """Whether quotas leave it unread, and nothing of it is started."""
        return self._throttle is not None and self._throttle.is_on

    @property
    def _is_polling(self) -> bool:
        """Whether a request runs that waits for others (it runs alone), for as long as the client
        has said. A Fetch ends early for what is behind it."""
        if not self._running:
            return False
        first = self._running[0]
        return (
            first.api is not None
            and first.api.is_long_poll
            and not first.is_answered
            and not (first.key == codec.FETCH_KEY and self._behind.is_any)
        )

    # Reading.

    def adjust_reading(self) -> None:
        """Read while there is room: on this connection, and in the memory all of them share."""
        if self._is_lost or self._transport.is_closing():
            return
        limits = self._limits
        # Who has not logged in holds one request in memory (CVE-2022-34917).
        awaits_login = self._login is not None and self._login.awaits_login
        wanted = (
            not self._is_finishing
            and self._failure is None
            and not self._memory.is_full
            and not self._is_held
            and len(self._waiting) + len(self._running)
            < (1 if awaits_login else limits.max_in_flight_requests_per_connection)
            and self._bytes_in_flight < limits.max_in_flight_bytes_per_connection
        )
        if wanted == self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
        self._watch_partial(True)

    def _watch_partial(self, begins_anew: bool) -> None:
        """Time the request under way, but not while it is we who do not read."""
        timer = self._partial_timer
        is_due = self._framer.is_partial and self._is_reading
        if timer is not None and (begins_anew or not is_due):
            timer.cancel()
            timer = None
        if timer is None and is_due:
            timeout_s = self._limits.request_receive_timeout_ms / 1000
            timer = self._loop.call_later(timeout_s, self._close_partial)
        self._partial_timer = timer

    def _close_partial(self) -> None:
        timeout_ms = self._limits.request_receive_timeout_ms
        self.close_for(f"a request was not complete within {timeout_ms} ms")

    def _close_if_idle(self) -> None:
        idle_s = self._limits.connections_max_idle_ms / 1000
        left_s = self._active_at + idle_s - self._loop.time()
        if self._running:
            left_s = idle_s
        if left_s > 0:
            self._idle_timer = self._loop.call_later(left_s, self._close_if_idle)
        else:
            log.debug("idle connection closed", peer=self._peer, client_id=self._client_id)
            self._close()

    # Who is there.

    def _known_by_certificate(self, names: PrincipalMapping) -> None:
        """Kafka's DefaultKafkaPrincipalBuilder: nobody by name where no certificate was shown."""
        certificate = peer_certificate(self._transport)
        if certificate is None:
            return
        try:
            name = subject_of(certificate)
        except MalformedName as reason:
            self.close_for(f"its certificate cannot be read: {reason}")
            return
        user = names.user_of(name)
        if user is None:
            self.close_for(f"no rule of {MAPPING_RULES} fits its certificate's name {shown(name)}")
            return
        self._known_as = Principal(user)

    def _on_logged_in(self) -> None:
        assert self._login_timer is not None, "the login was timed"
        self._login_timer.cancel()
        self._framer.max_bytes = self._limits.socket_request_max_bytes
        self._rights = None
        self._contexts.clear()

    def _close_unless_logged_in(self) -> None:
        self.close_for("it has not logged in in time")

    # Quotas.

    def _use(self, request: _Request, api: Api, header: RequestHeader) -> None:
        """Counts the bytes of what brings records; the rest is known when it is answered."""
        assert self._throttles is not None, "there are quotas"
        if self._throttle is None:
            self._throttle = Throttle(self._throttles, self._go_on)
        usage = request.usage = self._throttle.usage(self._principal, header.client_id)
        if usage is not None and api.brings_records:
            self._throttle.take(usage, usage.limits.produce, request.size)

    def _settle(self, request: _Request, usage: Usage, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        """Counts what is known of its use by now, and tells the client how long it is to wait."""
        header, response = request.header, request.response
        assert self._throttle is not None and header is not None, "it uses something"
        told_ms = getattr(response, "throttle_time_ms", None)
        is_fetch = header.api_key == codec.FETCH_KEY
        told_for = usage.limits.consume if is_fetch else usage.limits.mutation
        throttle_time_ms = self._throttle.settle(usage, told_ms or 0, told_for)
        if told_ms is None or throttle_time_ms == told_ms:
            return parts  # also of the few answers that have no room for it
        # How long is known only now; what is sent of records is not copied.
        response.throttle_time_ms = throttle_time_ms
        try:
            return codec.encode_response(response, header.api_version, header.correlation_id)
        finally:
            response.throttle_time_ms = 0  # it may be sent to others, too

    # Serving.

    def _serve(self) -> None:
        """Start what may start, in order."""
        self._start_waiting()
        if self._memory.is_full:
            self._memory.look(self)

    def _start_waiting(self) -> None:
        waiting, running = self._waiting, self._running
        while waiting and not self._is_write_blocked and not self._is_finishing:
            if self._is_held:
                return
            request = waiting[0]
            if running and not self._may_join(request):
                return
            waiting.popleft()
            running.append(request)
            try:
                self._start(request)
            except MalformedRequest as reason:
                running.pop()
                self._let_go(request)
                self._drop_waiting()
                self._failure = str(reason)
                return

    def _may_join(self, request: _Request) -> bool:
        """Whether a request may start beside those that run: only like beside like."""
        running = self._running
        if len(running) >= self._limits.max_in_flight_requests_per_connection:
            return False
        last = running[-1]
        return request.key == last.key and last.api is not None and last.api.runs_side_by_side

    def _start(self, request: _Request) -> None:
        """Decode, and start the handler as a task (tasks start in the order of their making)."""
        login = self._login
        if login is not None and login.expects_bare_token:
            request.header, request.api = header_of_bare_token(), BARE_TOKEN
            self._start_task(request, BARE_TOKEN, bytes(request.frame))
            return
        header = request.header = codec.decode_header(request.frame)
        self._client_id = header.client_id[:_CLIENT_ID_LOGGED]
        version = header.api_version
        api = self._front_end.registry.find(header.api_key)
        if api is None:
            raise MalformedRequest(f"API key {header.api_key} is not served")
        # Before the body is read: who is not known yet reaches no more than two APIs' decoders.
        if login is not None and (
            reason := login.check(header.api_key, api.name, request.received)
        ):
            raise MalformedRequest(reason)
        request.api = api
        if version not in api.versions:
            if api.unsupported is None:
                raise MalformedRequest(f"{api.name} v{version} is not served")
            request.header = replace(header, api_version=0)
            self._finished(request, api.unsupported())
            self._answer()
            return
        if (
            self._throttles is not None
            and self._throttles.rules is not None
            and not api.is_exempt_from_quotas
            and (login is None or not login.awaits_login)
        ):
            self._use(request, api, header)
        message = codec.decode_body(header, request.frame)
        if header.api_key == codec.API_VERSIONS_KEY and version >= 3:
            self._note_software(message)
        if api.comes_in_bursts is not None:
            request.is_of_burst = api.comes_in_bursts(message)
        self._start_task(request, api, message)

    def _start_task(self, request: _Request, api: Api, message: Any) -> None:
        task = self._loop.create_task(self._run(request, api, message))
        request.task = task
        self._front_end.running.add(task)
        task.add_done_callback(self._front_end.running.discard)

    async def _run(self, request: _Request, api: Api, message: Any) -> None:
        """The task of one request."""
        assert request.header is not None, "a request that runs has a header"
        usage = request.usage
        try:
            handling = api.handler(message, self._context(api, request.header))
            if usage is not None and usage.limits.request is not None:
                handling = Timed(handling, usage)
            response = await handling
        except asyncio.CancelledError:  # by `_cancel_long_polls`, or what it waited for was
            response = CLOSE_CONNECTION
        except Exception as failure:  # noqa: BLE001 - a handler's bug costs its own client only
            self._log_failure("request failed", request, failure)
            response = CLOSE_CONNECTION
        self._finished(request, response)
        if len(self._running) == 1:
            self._go_on()
        elif not self._is_going_on:
            # What has waited for the same commit is done in this turn of the loop too. To send
            # wakes the client up, and costs more than to encode.
            self._is_going_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Answer what is done, start what may follow."""
        self._is_going_on = False
        if not self._is_lost:
            self._answer()
            self._serve()
            self._close_if_done()
            self.adjust_reading()

    def _note_software(self, message: Any) -> None:
        software = ClientSoftware(message.client_software_name, message.client_software_version)
        if software.is_valid:
            self._software = software
            self._contexts.clear()

    def _context(self, api: Api, header: RequestHeader) -> RequestContext:
        """Contexts are values: one is shared by all requests that would have equal ones."""
        key = (header.api_key, header.api_version, header.client_id)
        context = self._contexts.get(key)
        if context is None:
            if len(self._contexts) >= _CONTEXTS_KEPT:
                self._contexts.clear()
            context = RequestContext(
                self._front_end.services,
                api,
                header.api_version,
                header.client_id,
                peer=self._peer,
                client_software=self._software,
                principal=self._principal,
                rights=self._rights_of_client(),
                login=self._login,
                connection=self._number,
                behind=self._behind,
            )
            self._contexts[key] = context
        return context

    @property
    def _principal(self) -> Principal:
        return self._login.principal if self._login else self._known_as

    def _rights_of_client(self) -> KafkaRights | None:
        """None where nobody is asked for rights. Decisions are remembered as long as it is the
        same principal's connection."""
        acls = self._front_end.acls
        if self._rights is None and acls is not None:
            self._rights = KafkaRights(
                acls, self._principal, shown_host(self._peer)[1:], self._front_end.on_refused
            )
        return self._rights

    def _finished(self, request: _Request, response: Any) -> None:
        if not request.is_answered:
            request.is_answered = True
            request.response = response
            if self._is_lost:
                self._let_go(request)

    def _log_closing(self, reason: str) -> None:
        log.warning("connection closed", reason=reason, peer=self._peer, client_id=self._client_id)

    def _log_failure(self, event: str, request: _Request, failure: BaseException) -> None:
        header = request.header
        log.error(
            event,
            api_key=request.key,
            api_version=header.api_version if header else None,
            peer=self._peer,
            client_id=self._client_id,
            exc_info=(type(failure), failure, failure.__traceback__),
        )

    def _answer(self) -> None:
        """Write the answers that are due: those before the first request still running."""
        running = self._running
        parts: list[Buffer] = []
        while running and running[0].is_answered:
            request = running.popleft()
            self._let_go(request)
            if request.response is CLOSE_CONNECTION:
                self._finish_with(parts)
                parts = []
            elif isinstance(request.response, LastResponse):
                request.response = request.response.response
                self._finish_with([*parts, *(self._encode(request) or ())])
                parts = []
            elif not self._transport.is_closing():
                encoded = self._encode(request)
                if encoded is None:
                    self._burst.send(parts)
                    self._burst.end()
                    self.abort()
                    return
                parts += encoded
                if request.is_of_burst:
                    self._burst.count()
        self._burst.send(parts)

    def _is_asked_for_more(self) -> bool:
        """Whether there are requests of an API that comes in bursts, first of all those that are
        not answered."""
        for request in self._running:
            return request.api is not None and request.api.comes_in_bursts is not None
        return bool(self._waiting)

    def _finish_with(self, parts: Sequence[Buffer]) -> None:
        """Write the last of it."""
        self._burst.send(parts)
        self._is_finishing = True
        self._drop_waiting()
        self._close()

    def _encode(self, request: _Request) -> Sequence[Buffer] | None:
        header = request.header
        assert header is not None, "a request that is answered has a header"
        version = header.api_version
        parts: Sequence[Buffer] = ()
        if isinstance(request.response, BareToken):
            parts = (request.response.framed(),)
        elif request.response is not None:
            try:
                parts = codec.encode_response(request.response, version, header.correlation_id)
            except Exception as failure:  # noqa: BLE001 - a handler's bug costs its own client only
                self._log_failure("response cannot be encoded", request, failure)
                return None
        if request.usage is not None:
            parts = self._settle(request, request.usage, parts)
        now = self._active_at = self._loop.time()
        seconds = now - request.received
        sent = sum(map(len, parts))
        self._front_end.observer(header.api_key, version, seconds, request.size, sent)
        return parts

    def _write(self, parts: Sequence[Buffer]) -> None:
        if not parts or self._transport.is_closing():
            return
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)

    def _let_go(self, request: _Request) -> None:
        self._bytes_in_flight -= request.size
        self._memory.hold(-request.size)
