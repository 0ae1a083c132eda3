"""What the page asks of the store. Implemented by `storage.console`; knows no SQL.

A module for each subject. Rows are as people are to see them: times are datetimes, spans seconds.
Every call may raise `core.ports.log.StoreUnavailable`.
"""

from dataclasses import dataclass

from core.ports.console.groups import GroupReads
from core.ports.console.overview import OverviewReads
from core.ports.console.producers import ProducerReads
from core.ports.console.records import RecordReads
from core.ports.console.subscriptions import SubscriptionReads
from core.ports.console.topics import TopicReads
from core.ports.console.transactions import TransactionReads


@dataclass(frozen=True, slots=True)
class ConsoleReads:
    """All of it."""

    overview: OverviewReads
    groups: GroupReads
    subscriptions: SubscriptionReads
    records: RecordReads
    producers: ProducerReads
    topics: TopicReads
    transactions: TransactionReads
