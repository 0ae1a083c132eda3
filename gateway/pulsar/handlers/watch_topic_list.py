"""WATCH_TOPIC_LIST: the names of a namespace's topics, and from then on each change of them.

Behavior: a pattern that is too long for the broker, or not in RE2's syntax, is NotAllowedError, as
in Pulsar: the client then asks for the list from time to time, and picks for itself. A client that
has the same names already (`topics_hash`) is told nothing but that. The same id again replaces the
watcher. Source: TopicListService.
"""

from core.errors import Refusal
from core.ports.log import StoreUnavailable
from gateway.pulsar.api import Refused, command
from gateway.pulsar.commands import CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandWatchTopicList, CommandWatchTopicListSuccess
from gateway.pulsar.names import parse_namespace
from gateway.pulsar.session import Session
from gateway.pulsar.topic_lists import MOST_WATCHERS, TopicListWatcher, list_names, seen_by


@command(CommandType.WATCH_TOPIC_LIST)
async def watch_topic_list(
    message: CommandWatchTopicList, session: Session
) -> CommandWatchTopicListSuccess | Refused | Refusal:
    """Take the watcher in, then list: a change between the two is told."""
    namespace = parse_namespace(message.namespace)
    if isinstance(namespace, Refusal):
        return namespace
    if len(session.watchers) >= MOST_WATCHERS and message.watcher_id not in session.watchers:
        reason = f"A connection may have {MOST_WATCHERS} topic list watchers"
        return Refused(ServerError.TOO_MANY_REQUESTS, reason)
    services = session.services
    watcher = TopicListWatcher(session, message.watcher_id, namespace, message.topics_pattern)
    session.watch(watcher)
    try:
        topics = await services.topics.all()
    except StoreUnavailable:
        session.stop_watching(watcher)
        raise
    listed = list_names(topics, namespace, message.topics_pattern, seen_by(session))
    if message.topics_pattern and not listed.is_filtered:
        session.stop_watching(watcher)
        return Refused(
            ServerError.NOT_ALLOWED_ERROR,
            "Unable to create topic list watcher: the pattern is too long, or not in RE2's syntax",
        )
    watcher.told = frozenset(listed.names)
    services.topic_lists.look()
    is_same = bool(message.topics_hash) and message.topics_hash == listed.digest
    return CommandWatchTopicListSuccess(
        request_id=message.request_id,
        watcher_id=message.watcher_id,
        topic=() if is_same else listed.names,
        topics_hash=listed.digest,
    )
