"""WATCH_TOPIC_LIST_CLOSE: the watcher goes; an unknown one has gone already."""

from gateway.pulsar.api import command
from gateway.pulsar.commands import CommandType
from gateway.pulsar.commands_pb2 import CommandSuccess, CommandWatchTopicListClose
from gateway.pulsar.session import Session


@command(CommandType.WATCH_TOPIC_LIST_CLOSE)
def watch_topic_list_close(message: CommandWatchTopicListClose, session: Session) -> CommandSuccess:
    """Tell it no more."""
    watcher = session.watchers.get(message.watcher_id)
    if watcher is not None:
        session.stop_watching(watcher)
    return CommandSuccess(request_id=message.request_id)
