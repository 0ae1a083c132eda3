"""The batch of one record, held to its topic's rules as if a producer had sent it."""

from __future__ import annotations

from core.config.values import TopicConfig
from core.errors import Refusal
from core.log.records import Record, RecordSet
from core.types import Payload, RecordBatch
from gateway.kafka.conversion import write_batch
from gateway.kafka.records import validate_batch
from gateway.kafka.validation import Rejected, accept


def single_batch(
    record: Record, config: TopicConfig, now_ms: int
) -> tuple[RecordBatch, Payload] | Refusal:
    """See `gateway.runtime.log.single_appends.MakeBatch`. Of the rules that are about single
    records the first that is broken says why."""
    batch = validate_batch(memoryview(write_batch(RecordSet((record,), now_ms))))
    if isinstance(batch, Refusal):
        return batch
    accepted = accept(batch, config, now_ms)
    if isinstance(accepted, Rejected):
        reasons = [reason for _, reason in accepted.record_errors]
        return Refusal(accepted.refusal.error, reasons[0]) if reasons else accepted.refusal
    return accepted.batch, accepted.payload
