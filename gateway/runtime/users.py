"""Users: a cache of all of them, the changes that administrators ask for, and slow checks.

Kept as fresh as a broker's session lasts: half a second while the database answers; and if it does
not, nobody new is let in once the session would be over. Core has the rules; this knows no wire and
no SQL, and logs no secret.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from core.ports.log import StoreUnavailable
from core.security.credentials import (
    Credential,
    CredentialChanges,
    Deletion,
    Described,
    Upsertion,
    decide_alterations,
    describe_users,
)
from core.security.verifier import ScramMechanism, Shape, Verifier, mock_verifier, usual_shape
from gateway.runtime.cluster.membership import session_clock
from gateway.runtime.topics.shared_read import SharedRead

if TYPE_CHECKING:
    from core.errors import Refusal
    from core.ports.users import StoredUsers, UserStore
    from core.security.principal import Principal

log = structlog.get_logger(__name__)

LOOK_AGAIN_S: Final = 0.5
CHECKS_AT_ONCE: Final = 2
"""Of passwords. One takes milliseconds of a core, without the interpreter's lock."""
_SAMPLE: Final = 1000
"""Users of whom it is taken what is usual."""
_SHOWN: Final = 100  # characters of a name

Result = TypeVar("Result")


class Users:
    """The users of the cluster. One per process; nothing is read before somebody `watch`es.

    session_timeout_s: for how long after a read nobody doubts it.
    """

    def __init__(self, store: UserStore, session_timeout_s: float) -> None:
        self._store = store
        self._session_timeout_s = session_timeout_s
        self._stored: StoredUsers | None = None
        self._shapes: dict[ScramMechanism, Shape] = {}
        self._usual_mechanism = ScramMechanism.SHA_256  # of what PLAIN is checked against
        self._current_until = 0.0  # by `session_clock`
        self._wanted = asyncio.Event()
        self._wake = asyncio.Event()
        self._fresh = SharedRead(self._read)
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._threads: ThreadPoolExecutor | None = None
        self._on_change: list[Callable[[], None]] = []

    # --- reading ---

    def watch(self, on_change: Callable[[], None]) -> None:
        """Keeps up with the users from now on. on_change: called when they differ."""
        self._on_change.append(on_change)
        self._wanted.set()

    def invalidate(self) -> None:
        """They may have changed, here or at another broker: makes `run` look at once."""
        self._wake.set()

    @property
    def is_current(self) -> bool:
        """Whether what is known of the users holds by now."""
        return self._stored is not None and session_clock() < self._current_until

    async def ensure_current(self) -> None:
        """Reads the users unless they are current. Raises StoreUnavailable."""
        if not self.is_current:
            await self.refresh()

    async def refresh(self) -> None:
        """Reads the users, if they have changed, by a read that begins after this call; callers
        share it. Raises StoreUnavailable."""
        await self._fresh.find([None])

    async def _read(self, _: Collection[None]) -> Mapping[None, None]:
        asked_at = session_clock()
        known = self._stored.version if self._stored else None
        found = await self._store.read(known)
        self._current_until = asked_at + self._session_timeout_s
        if found is not None:
            self._take(found)
        return {}

    def _take(self, found: StoredUsers) -> None:
        for name in found.unusable:
            log.warning(
                "user_unusable",
                user=shown(name),
                what_to_do="store a SCRAM verifier of 4,096 rounds or more for it",
            )
        self._stored = found
        some = list(islice(found.users.values(), _SAMPLE))
        self._shapes = {
            mechanism: usual_shape(
                each for those in some for each in those if each.mechanism is mechanism
            )
            for mechanism in ScramMechanism
        }
        checked = Counter(those[0].mechanism for those in some)
        self._usual_mechanism = max(
            ScramMechanism, key=lambda each: (checked[each], each is ScramMechanism.SHA_256)
        )
        for on_change in self._on_change:
            on_change()

    @property
    def secret(self) -> bytes:
        """The cluster's, which every broker knows and nobody else; they were read before."""
        assert self._stored is not None, "users were read before anybody asks"
        return self._stored.secret

    def find(self, name: str, mechanism: ScramMechanism) -> Verifier | None:
        """A user's verifier of a mechanism, as last read."""
        return next((each for each in self._of(name) if each.mechanism is mechanism), None)

    def find_any(self, name: str) -> Verifier | None:
        """The verifier by which a plain password is checked, as last read."""
        return next(iter(self._of(name)), None)

    def _of(self, name: str) -> Sequence[Verifier]:
        return self._stored.users.get(name, ()) if self._stored else ()

    def mock(self, name: str, mechanism: ScramMechanism) -> Verifier:
        """What stands in for the verifier of a user that is not there: no password opens it."""
        assert self._stored is not None, "users were read before anybody logs in"
        shape = self._shapes.get(mechanism, Shape())
        return mock_verifier(mechanism, name, self._stored.secret, shape)

    def mock_any(self, name: str) -> Verifier:
        """The same for `find_any`: to check it takes as long as it does for most users."""
        return self.mock(name, self._usual_mechanism)

    async def describe(self, names: Sequence[str] | None) -> Described:
        """See `describe_users`. Reads them. Raises StoreUnavailable."""
        await self.refresh()
        assert self._stored is not None, "they were just read"
        return describe_users(names, self._stored.users)

    # --- checking ---

    async def is_password(self, verifier: Verifier, password: str) -> bool:
        """Whether the password is the verifier's."""
        return await self.compute(verifier.is_of, password)

    async def compute(self, slow: Callable[..., Result], *arguments: object) -> Result:
        """What a function of PBKDF2 gives. Off the event loop, few at once."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(CHECKS_AT_ONCE, "password")
        # Who has gone meanwhile is not checked any more.
        async with self._checks:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, partial(slow, *arguments))

    # --- changing ---

    async def alter(
        self,
        deletions: Sequence[Deletion],
        upsertions: Sequence[Upsertion],
        *,
        principal: Principal,
        peer: str,
    ) -> Mapping[str, Refusal | None]:
        """Changes users; each one's answer, None stands for success. principal, peer: who asks,
        for the log. Raises StoreUnavailable."""
        answers: Mapping[str, Refusal | None] = {}
        decided = CredentialChanges()

        def decide(existing: Collection[Credential]) -> CredentialChanges:
            nonlocal answers, decided
            decided, answers = decide_alterations(deletions, upsertions, existing)
            return decided

        asked = {each.user for each in deletions} | {each.user for each in upsertions}
        names = {name for name in asked if "\0" not in name}
        try:
            await self._store.alter(names, decide)
        finally:
            # Also if the outcome of the commit is unknown: it may have succeeded.
            self.invalidate()
        changed = [
            *(("deleted", name, mechanism) for name, mechanism in decided.deletions),
            *(("set", name, verifier.mechanism) for name, verifier in decided.upserts),
        ]
        for what, name, mechanism in changed:
            log.info(
                "user_changed",
                user=shown(name),
                mechanism=mechanism.value,
                change=what,
                principal=shown(str(principal)),
                peer=peer,
            )
        if self._wanted.is_set():
            # Whoever has been told of the change may log in here at once.
            await self._refresh_quietly()
        return answers

    async def _refresh_quietly(self) -> bool:
        try:
            await self.refresh()
        except StoreUnavailable as error:
            log.debug("users_not_read", reason=str(error))
            return False
        return True

    # --- in the background ---

    async def run(self) -> None:
        """Looks for changes, until cancelled; sleeps as long as nobody watches."""
        await self._wanted.wait()
        is_away = False
        while True:
            self._wake.clear()
            was_away, is_away = is_away, not await self._refresh_quietly()
            if is_away and not was_away:
                log.warning("users_not_read", what_happens="nobody new is let in before they are")
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def close(self) -> None:
        """Ends the threads; what they check is not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def shown(text: str) -> str:
    """A client's text as it may be in a line of the log: short, and in one line."""
    cut = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)
