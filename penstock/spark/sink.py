"""The writers that Spark calls: tasks stage, the driver publishes.

Knows PySpark's writer classes; must not know how rows become batches nor the wire. A writer's
state does not travel from `write`, which runs in the tasks, to `commit`, which runs beside the
driver: all that `commit` needs is in the tasks' messages.

A batch is published under (query id, sink, batch id), and the database keeps the highest batch id:
a batch that Spark commits again, because it died in between, is not published again. A stream that
comes with an earlier one than the last has an old checkpoint, and fails.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from pyspark import TaskContext

try:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )
except ImportError as older:
    raise ImportError("The penstock sink needs PySpark 4.2 (4.1 may do).") from older

from penstock.spark import staging
from penstock.spark.options import SinkOptions
from penstock.spark.staging import SinkError, Staged, cluster_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.wire import PublishAnswer

log = logging.getLogger(__name__)

# Set by Spark for the tasks of a stream, and the same after a restart.
QUERY_ID: Final = "sql.streaming.queryId"

_ONE_SHOT: Final = -1  # the batch id of a batch job


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a successful task has staged. query_id: of the stream, or of the job's run."""

    query_id: str
    staged: Staged


Messages = Sequence[WriterCommitMessage | None]


class PenstockStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        if not query_id:
            raise SinkError("Spark does not tell the id of the query that this task belongs to.")
        return TaskMessage(query_id, _stage(iterator, self._options))

    def commit(self, messages: Messages, batchId: int) -> None:
        answer = _publish(self._options, messages, batchId)
        if answer is not None and answer.highest > batchId:
            raise _old_checkpoint(batchId, answer.highest)

    def abort(self, messages: Messages, batchId: int) -> None:
        _drop(self._options, messages)


class PenstockBatchWriter(DataSourceArrowWriter):
    """Writes a batch job's frame. Its run has an id of its own, unless the user names one."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._run_id, self._number = options.transaction or (str(uuid4()), _ONE_SHOT)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return TaskMessage(self._run_id, _stage(iterator, self._options))

    def commit(self, messages: Messages) -> None:
        answer = _publish(self._options, messages, self._number)
        if answer is not None and answer.highest > self._number:
            if self._options.fails_below:
                raise _old_checkpoint(self._number, answer.highest)
            log.warning(
                "Nothing was written: %s has written number %d, and this is %d.",
                self._run_id,
                answer.highest,
                self._number,
            )

    def abort(self, messages: Messages) -> None:
        _drop(self._options, messages)


def is_written(options: SinkOptions) -> bool:
    """Whether a batch job's named write has been done: it need not be begun. Raises SinkError."""
    assert options.transaction is not None, "it has a name"
    run_id, number = options.transaction
    return staging.is_published(cluster_of(options), run_id, options.sink_id, number)


def _old_checkpoint(batch_id: int, highest: int) -> SinkError:
    return SinkError(
        f"Batch {batch_id} was not written: batches of this query up to {highest} are published."
        f" Its checkpoint is older than that (was it restored from a copy?), so what the batch has"
        f" in it may differ. Begin with a new checkpoint, behind what is in the topic."
    )


def _stage(batches: Iterator[pa.RecordBatch], options: SinkOptions) -> Staged:
    # Spark plans and commits each micro-batch in new processes, which need none of it.
    from penstock.spark.task import stage

    return stage(batches, options, cluster_of(options))


def _publish(options: SinkOptions, messages: Messages, batch_id: int) -> PublishAnswer | None:
    """One commit of the database, or nothing where no task has staged anything."""
    staged = [message for message in messages if isinstance(message, TaskMessage)]
    if len(staged) < len(messages):
        raise SinkError(f"{len(messages) - len(staged)} tasks of the batch have not told the end.")
    tokens = [
        (message.staged.token, message.staged.batches)
        for message in staged
        if message.staged.token is not None
    ]
    if not tokens:
        return None
    query_ids = {message.query_id for message in staged}
    if len(query_ids) > 1:
        raise SinkError(f"The tasks of one batch belong to several queries: {query_ids}.")
    return staging.publish(cluster_of(options), query_ids.pop(), options.sink_id, batch_id, tokens)


def _drop(options: SinkOptions, messages: Messages) -> None:
    """What was staged for nothing goes at once. What was published meanwhile stays."""
    tokens: list[UUID] = [
        message.staged.token
        for message in messages
        if isinstance(message, TaskMessage) and message.staged.token is not None
    ]
    if tokens:
        staging.drop(cluster_of(options), tokens)
