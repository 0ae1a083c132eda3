"""The audit's report: one HTML file with its style, tables and charts in it, and nothing from afar.

Knows what was found and how it looks; must not know where it came from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Final

from penstock.spark.pipelines.charts import columns, legend, shares
from penstock.spark.pipelines.history import (
    ABORTED,
    COMMITTED,
    STATUSES,
    UNDECIDED,
    Bucket,
    History,
    PartitionFacts,
)
from penstock.spark.pipelines.markup import (
    STYLE,
    UNKNOWN,
    Markup,
    counted,
    duration,
    key_text,
    percent,
    size,
    table,
    when,
)
from penstock.spark.pipelines.transactions import Transaction, Transactions

_CLASSES: Final = {COMMITTED: "a", ABORTED: "b", UNDECIDED: "c", "markers": "d"}
_TOPIC_CLASSES: Final = ("t0", "t1", "t2", "t3", "t4", "t5")
_OTHERS: Final = "others"

_SIZES: Final = tuple(n * 10**power for power in range(8) for n in (1, 2, 5))
_DURATIONS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)


@dataclass(frozen=True, slots=True)
class Audit:
    """What the report is about. transactions: None where no database was asked."""

    topics: tuple[str, ...]
    bootstrap: str
    made: datetime
    history: History
    transactions: Transactions | None


def html(audit: Audit) -> str:
    """The whole page."""
    names = ", ".join(audit.topics)
    body = [
        f"<h1>{escape(names)}</h1>",
        f'<p class="soft">What happened in {counted(len(audit.topics), "topic")} at'
        f" {escape(audit.bootstrap)}, read on {when(audit.made)}. {_sources(audit)}</p>",
        _tiles(audit),
        _throughput(audit.history),
        _partitions(audit),
        _gaps(audit),
        _transactions(audit.transactions),
        _keys(audit.history),
    ]
    head = f'<meta charset="utf-8"><title>Audit of {escape(names)}</title>'
    head += '<meta name="viewport" content="width=device-width"><meta name="generator"'
    head += f' content="penstock pipeline audit"><style>{STYLE}</style>'
    return (
        f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'
    )


# --- the parts ---


def _sources(audit: Audit) -> str:
    read = (
        "Records were read from the log at both isolation levels: what readers of committed data"
        " do not see was aborted, or is undecided."
    )
    if audit.transactions is None:
        return (
            f"{read} No database was asked (<code>--database-url</code>), so sizes and durations of"
            " transactions are not known."
        )
    return f"{read} Transactions are those of the database's index of batches."


def _tiles(audit: Audit) -> str:
    history = audit.history
    committed, aborted, undecided = (history.records(status) for status in STATUSES)
    firsts = [each.first for each in history.partitions if each.first]
    lasts = [each.last for each in history.partitions if each.last]
    span = duration((max(lasts) - min(firsts)).total_seconds()) if firsts else UNKNOWN
    tiles = [
        (f"{committed:,}", "records committed"),
        (percent(aborted, committed + aborted), f"aborted ({counted(aborted, 'record')})"),
        (f"{undecided:,}", "records undecided"),
        (size(sum(each.bytes for each in history.partitions)), "of keys and values"),
        (span, "from first to last record"),
        (f"{sum(each.again for each in history.keys):,}", "records repeat a key and its value"),
    ]
    if audit.transactions is not None:
        tiles.append((f"{len(audit.transactions.ended):,}", "transactions ended"))
    shown = (
        f'<div class="tile"><b>{escape(a)}</b><span>{escape(b)}</span></div>' for a, b in tiles
    )
    return f'<div class="tiles">{"".join(shown)}</div>'


def _throughput(history: History) -> str:
    if not history.buckets:
        return "<h2>Throughput</h2><p>There are no records.</p>"
    times, at = _times(history)
    by_status = {status: [0.0] * len(times) for status in STATUSES}
    sizes = [0] * len(times)
    for bucket in history.buckets:
        by_status[bucket.status][at(bucket)] += bucket.records / history.bucket_s
        sizes[at(bucket)] += bucket.bytes
    by_status = {name: values for name, values in by_status.items() if any(values)}
    labels = [_label(time, history.bucket_s) for time in times]
    tips = [
        f"{when(time)}: "
        + ", ".join(f"{values[n] * history.bucket_s:,.0f} {s}" for s, values in by_status.items())
        + f", {size(sizes[n])}"
        for n, time in enumerate(times)
    ]
    parts = [
        "<h2>Throughput</h2>",
        f"<p class=soft>By the records' timestamps, {duration(history.bucket_s)} a column.</p>",
        columns(labels, by_status, classes=_CLASSES, unit="records/s", tips=tips),
        legend({name: _CLASSES[name] for name in by_status}),
    ]
    if ABORTED in by_status:
        done = [
            sum(by_status.get(s, [0.0] * len(times))[n] for s in (COMMITTED, ABORTED))
            for n in range(len(times))
        ]
        share = [
            100 * a / whole if whole else 0.0
            for a, whole in zip(by_status[ABORTED], done, strict=True)
        ]
        parts += [
            "<h2>Aborted share</h2>",
            columns(labels, {ABORTED: share}, classes=_CLASSES, unit="% of the records decided on"),
        ]
    if len({bucket.topic for bucket in history.buckets}) > 1:
        parts += _by_topic(history, times, at, labels)
    return "".join(parts)


def _times(history: History) -> tuple[list[datetime], Callable[[Bucket], int]]:
    """The beginnings of all stretches, the empty ones among them, and which one a bucket is."""
    first, last = history.buckets[0].start.timestamp(), history.buckets[-1].start.timestamp()
    count = min(400, round((last - first) / history.bucket_s) + 1)
    zone = history.buckets[0].start.tzinfo
    times = [datetime.fromtimestamp(first + n * history.bucket_s, zone) for n in range(count)]

    def at(bucket: Bucket) -> int:
        return min(count - 1, round((bucket.start.timestamp() - first) / history.bucket_s))

    return times, at


def _label(time: datetime, width_s: int) -> str:
    if width_s >= 86_400:
        return f"{time:%Y-%m-%d}"
    return f"{time:%d %b %H:%M}" if width_s >= 600 else f"{time:%H:%M:%S}"


def _by_topic(
    history: History, times: list[datetime], at: Callable[[Bucket], int], labels: list[str]
) -> list[str]:
    """The largest topics by name, the rest as one."""
    totals: dict[str, int] = defaultdict(int)
    for bucket in history.buckets:
        totals[bucket.topic] += bucket.records
    largest = sorted(totals, key=lambda topic: -totals[topic])[: len(_TOPIC_CLASSES) - 1]
    names = [*largest, *([_OTHERS] if len(totals) > len(largest) else [])]
    series = {name: [0.0] * len(times) for name in names}
    for bucket in history.buckets:
        name = bucket.topic if bucket.topic in series else _OTHERS
        series[name][at(bucket)] += bucket.records / history.bucket_s
    classes = dict(zip(names, _TOPIC_CLASSES, strict=False))
    return [
        "<h2>Throughput by topic</h2>",
        columns(labels, series, classes=classes, unit="records/s"),
        legend(classes),
    ]


def _partitions(audit: Audit) -> str:
    heads = ("Topic", "Partition", "Offsets", "", "Committed", "Aborted", "Undecided", "Markers")
    rows = [
        (
            each.ends.topic,
            each.ends.partition,
            f"{each.ends.start:,} to {each.ends.end:,}",
            Markup(
                shares(
                    {
                        COMMITTED: each.committed,
                        ABORTED: each.aborted,
                        UNDECIDED: each.undecided,
                        "markers": each.empty,
                    },
                    classes=_CLASSES,
                )
            ),
            each.committed,
            each.aborted,
            each.undecided,
            each.empty,
            size(each.bytes),
            when(each.first),
            when(each.last),
        )
        for each in audit.history.partitions
    ]
    return (
        "<h2>Partitions</h2>"
        + table((*heads, "Size", "First record", "Last record"), rows)
        + legend(_CLASSES)
    )


def _gaps(audit: Audit) -> str:
    history = audit.history
    parts = [
        "<h2>Gaps</h2><p class=soft>Offsets that a reader of committed data does not see, and"
        " why.</p>"
    ]
    deleted = [each for each in history.partitions if each.ends.start]
    if deleted:
        parts.append(
            f"<p>{counted(sum(each.ends.start for each in deleted), 'offset')} at the start of"
            f" {counted(len(deleted), 'partition')} are deleted (retention or DeleteRecords):"
            f" {escape(', '.join(_start(each) for each in deleted[:10]))}"
            f"{' …' if len(deleted) > 10 else ''}.</p>"
        )
    rows = [
        (
            each.topic,
            "aborted transactions" if each.has_aborted else "markers only",
            each.gaps,
            each.aborted,
            each.empty,
        )
        for each in history.gap_kinds
    ]
    if rows:
        heads = ("Topic", "Why", "Gaps", "Aborted records", "Offsets of markers")
        parts.append(table(heads, rows, words=2))
    elif not deleted:
        parts.append("<p>There are none.</p>")
    parts.append(f"<p>{_explained(audit)}</p>")
    if history.longest_gaps:
        places = ("Topic", "Partition", "From", "To", "Offsets", "Aborted records", "Of markers")
        named = [
            (g.topic, g.partition, g.first, g.last, g.offsets, g.aborted, g.empty)
            for g in history.longest_gaps
        ]
        parts += ["<p>The longest:</p>", table(places, named)]
    return "".join(parts)


def _start(facts: PartitionFacts) -> str:
    return f"{facts.ends.topic}-{facts.ends.partition} starts at {facts.ends.start:,}"


def _explained(audit: Audit) -> str:
    """Whether the offsets without a record are markers."""
    if audit.transactions is None:
        return (
            "An offset without a record is taken for a transaction's marker; where a topic is"
            " compacted, it may also be a record that was removed."
        )
    other = [
        f"{each.ends.topic}-{each.ends.partition} ({each.empty - control:,})"
        for each in audit.history.partitions
        if each.empty != (control := _control(audit.transactions, each))
    ]
    if not other:
        return "Each offset without a record is a transaction's marker, as the database says."
    return f"Offsets that neither a record nor a marker explains: {escape(', '.join(other))}."


def _control(transactions: Transactions, facts: PartitionFacts) -> int:
    found = transactions.markers.get((facts.ends.topic, facts.ends.partition))
    return found.control if found else 0


def _transactions(found: Transactions | None) -> str:
    if found is None:
        return ""
    parts = ["<h2>Transactions</h2>"]
    if not found.ended:
        return "".join([*parts, f"<p>None has ended; {found.open:,} are open.</p>"])
    outcomes = {
        COMMITTED: [each for each in found.ended if not each.is_aborted],
        ABORTED: [each for each in found.ended if each.is_aborted],
    }
    outcomes = {name: each for name, each in outcomes.items() if each}
    heads = ("", "Transactions", "Records", "Median", "99 %", "Most", "Partitions, most")
    rows = [
        (
            name,
            len(each),
            sum(t.records for t in each),
            *_spread(each),
            max(t.partitions for t in each),
        )
        for name, each in outcomes.items()
    ]
    parts.append(
        table(
            (*heads, "Open for, median", "99 %", "Longest"),
            [(*row, *_open_for(outcomes[str(row[0])])) for row in rows],
        )
    )
    parts.append(
        f"<p class=soft>{counted(found.open, 'transaction')} not ended. Records and time of each;"
        " the time is from the first batch's newest record (the producer's clock) to the marker"
        " (the broker's).</p>"
    )
    sizes = {name: _histogram([t.records for t in each], _SIZES) for name, each in outcomes.items()}
    durations = {
        name: _histogram([t.seconds for t in each if t.seconds is not None], _DURATIONS_S)
        for name, each in outcomes.items()
    }
    parts += [
        *(
            "<h2>Sizes of transactions</h2>",
            _histogram_chart(sizes, _SIZES, lambda n: f"{n:,.0f}", "transactions, by records"),
        ),
        *(
            "<h2>Durations of transactions</h2>",
            _histogram_chart(durations, _DURATIONS_S, duration, "transactions, by time open"),
        ),
        legend({name: _CLASSES[name] for name in outcomes}),
        "<h2>Largest and longest</h2>",
        _largest(found.ended),
        "<h2>Producers</h2>",
        table(("Transactional id", "Transactions"), found.producers.most_common(20)),
    ]
    return "".join(parts)


def _spread(found: Sequence[Transaction]) -> tuple[int, int, int]:
    sizes = sorted(each.records for each in found)
    return sizes[len(sizes) // 2], sizes[int(len(sizes) * 0.99)], sizes[-1]


def _open_for(found: Sequence[Transaction]) -> tuple[str, str, str]:
    times = sorted(each.seconds for each in found if each.seconds is not None)
    if not times:
        return UNKNOWN, UNKNOWN, UNKNOWN
    return tuple(duration(times[n]) for n in (len(times) // 2, int(len(times) * 0.99), -1))  # type: ignore[return-value]


def _histogram(values: Sequence[float], limits: Sequence[float]) -> list[int]:
    """How many are below the first limit, from there below the second, … and from the last on."""
    counts = [0] * (len(limits) + 1)
    for value in values:
        counts[bisect_right(limits, value)] += 1
    return counts


def _histogram_chart(
    counts: Mapping[str, Sequence[int]],
    limits: Sequence[float],
    words: Callable[[float], str],
    unit: str,
) -> str:
    """Without the empty columns at both ends."""
    totals = [sum(each) for each in zip(*counts.values(), strict=True)]
    used = [index for index, total in enumerate(totals) if total]
    if not used:
        return ""
    shown = range(used[0], used[-1] + 1)
    labels = [f"< {words(limits[0])}" if n == 0 else f"≥ {words(limits[n - 1])}" for n in shown]
    series = {name: [float(each[n]) for n in shown] for name, each in counts.items()}
    return columns(labels, series, classes=_CLASSES, unit=unit)


def _largest(found: Sequence[Transaction]) -> str:
    largest = sorted(found, key=lambda each: -each.records)[:10]
    longest = sorted(found, key=lambda each: -(each.seconds or 0))[:10]
    both = list({id(each): each for each in (*largest, *longest)}.values())
    heads = ("Transactional id", "Outcome", "Ended", "Records", "Size", "Partitions", "Open for")
    rows = [
        (
            each.transactional_id or f"producer {each.producer_id}",
            ABORTED if each.is_aborted else COMMITTED,
            when(each.ended),
            each.records,
            size(each.bytes),
            each.partitions,
            duration(each.seconds),
        )
        for each in both
    ]
    return table(heads, rows, words=3)


def _keys(history: History) -> str:
    heads = ("Topic", "Keys", "With several records", "Records that repeat key and value")
    rows = [
        (each.topic, each.keys, each.repeated, each.again, each.without) for each in history.keys
    ]
    parts = [
        "<h2>Duplicates</h2><p class=soft>Among committed records. A key with several values is"
        " commonly one that was updated; the same value again may be a record sent twice.</p>",
        table((*heads, "Records without a key"), rows),
    ]
    if history.most_repeated:
        most = [
            (each.topic, key_text(each.key), each.records, each.values, each.again)
            for each in history.most_repeated
        ]
        its_heads = ("Topic", "Key", "Records", "Values", "Repeats")
        parts += ["<p>Most repeated:</p>", table(its_heads, most, words=2)]
    return "".join(parts)
