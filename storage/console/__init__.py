"""What the page reads: implements `core.ports.console` by the views. Knows no rule, and no page."""

from core.ports.console import ConsoleReads
from storage.connection.pool import Database
from storage.console.groups import PostgresGroups
from storage.console.overview import PostgresOverview
from storage.console.producers import PostgresProducers
from storage.console.reading import Reading
from storage.console.records import PostgresRecords
from storage.console.subscriptions import PostgresSubscriptions
from storage.console.topics import PostgresTopics
from storage.console.transactions import PostgresTransactions


def console_reads(database: Database) -> ConsoleReads:
    """All of it, over one database."""
    reading = Reading(database)
    return ConsoleReads(
        overview=PostgresOverview(reading),
        records=PostgresRecords(reading),
        groups=PostgresGroups(reading),
        subscriptions=PostgresSubscriptions(reading),
        producers=PostgresProducers(reading),
        topics=PostgresTopics(reading),
        transactions=PostgresTransactions(reading),
    )
