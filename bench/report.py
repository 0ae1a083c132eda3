"""Shows outcomes: a table, the goals, JSON, a plot. Must not measure anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.case import unit_of
from bench.runner import Outcome

US = "penstock"


def shown(value: float | None) -> str:
    """Three significant digits, thousands grouped."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(outcomes: Sequence[Outcome], brokers: Sequence[str]) -> Table:
    """One row a case: each broker's headline figure, and the first one's ratio to the others."""
    first, peers = brokers[0], brokers[1:]
    ratios = "ratios: the first broker's figure over the other's"
    others_are = "others: CPU that programs outside the benchmark took, in percent of a core"
    grid = Table(title=f"medians; {ratios}; {others_are}")
    grid.add_column("case")
    grid.add_column("figure")
    for name in brokers:
        grid.add_column(name, justify="right")
    grid.add_column("raw COPY", justify="right")
    for name in (*peers, "raw COPY"):
        grid.add_column(f"/ {name}", justify="right")
    grid.add_column("others", justify="right")
    for outcome in outcomes:
        ours, unit = outcome.headline(first), unit_of(outcome.case.headline)
        row = [outcome.case.name, outcome.case.headline]
        for name in brokers:
            missing = "skipped" if name in outcome.skipped else "[red]failed"
            absent = name in outcome.skipped or name in outcome.failed
            row.append(missing if absent else shown(outcome.headline(name)))
        row.append(shown(outcome.copy()))
        for other in (*map(outcome.headline, peers), outcome.copy()):
            if not ours or not other or min(ours, other) <= 0:
                row.append("")
                continue
            better = (ours >= other) == unit.more_is_better
            row.append(f"[{'green' if better else 'yellow'}]{ours / other:.2f}")
        others = outcome.others_percent()
        row.append(
            "" if others is None else f"[{'yellow' if others > 20 else 'dim'}]{others:.0f} %"
        )
        grid.add_row(*row)
    return grid


def figures_table(outcomes: Sequence[Outcome], brokers: Sequence[str]) -> Table:
    """Every figure of every case, for benches whose headlines are ratios."""
    grid = Table(title="all figures; medians")
    grid.add_column("case")
    grid.add_column("figure")
    for name in brokers:
        grid.add_column(name, justify="right")
    for outcome in outcomes:
        of_each = [outcome.figures(name) for name in brokers]
        for figure in dict.fromkeys(name for figures in of_each for name in figures):
            values = [shown(figures.get(figure)) for figures in of_each]
            grid.add_row(outcome.case.name, figure, *values)
        grid.add_section()
    return grid


def tell_missing(outcomes: Sequence[Outcome], console: Console) -> None:
    for outcome in outcomes:
        for kind, reasons in (("skipped", outcome.skipped), ("failed", outcome.failed)):
            for broker, reason in reasons.items():
                last = reason.strip().splitlines()[-1]  # the JSON has all of it
                console.print(f"{outcome.case.name}: {broker} {kind}: {last}", markup=False)


def as_json(
    outcomes: Sequence[Outcome], machine: dict[str, object], settings: dict[str, str]
) -> dict[str, Any]:
    return {
        "machine": machine,
        "settings": settings,
        "goals": [
            {"goal": text, "measured": measured, "reached": reached}
            for text, measured, reached in goals(outcomes)
        ],
        "cases": {
            outcome.case.name: {
                "headline": outcome.case.headline,
                "medians": {name: outcome.figures(name) for name in outcome.turns},
                "turns": outcome.turns,
                "copy_mb_per_s": outcome.copies_mb_per_s,
                "skipped": outcome.skipped,
                "failed": outcome.failed,
            }
            for outcome in outcomes
        },
    }


# --- the goals ------------------------------------------------------------------------------------

# (what, case, figure, against which peer or None, bound); with more-is-better figures the bound is
# a minimum, otherwise a maximum. The first matching outcome that was measured decides.
_REBALANCE = "groups/rebalance/classic/50m/200p"
_STEADY = "groups/heartbeats/classic/5000m"
_ONE = "transactions/confluent/1x/4p"
_EIGHT = "transactions/confluent/8x/4p"
_WITH_OFFSETS = "transactions/confluent/1x/4p/offsets"
_TIMED = "transactions/java/1kB/4p/100ms"
_MANY = "partitions/confluent/1kB/5000p"
_MOST = "partitions/confluent/1kB/10000p"
_PULSAR = "pulsar/produce/java/1KiB/1p"
_PULSAR_READ = "pulsar/consume/java/1KiB/1p"
_PULSAR_ONE = "pulsar/send-sync/java/1KiB"
_PULSAR_TXN = "pulsar/transactions/java/1x/1m"
_PULSAR_TXNS = "pulsar/transactions/java/16x/1m"
_PULSAR_TIMED = "pulsar/transactions/java/1KiB/1p/100ms"
_SPARK_SINK = "spark/exactly-once/100B/4p"
_LIMITED = "quotas/produce/confluent"
_BESIDE = "quotas/neighbour/aiokafka"
_RIGHTS = "with_to_without_ratio"
_TO_PLAIN = "tls_to_plain_ratio"
_TLS = "security/tls/produce"
_TLS_READ = "security/tls/consume"
_LOGINS = "security/logins/scram-256/32x"
_AGAIN = "security/storm/log-in-again"
_WRONG = "security/storm/wrong-passwords"
_OUTBOX = "to_outbox_ratio"
_LAST = "last_to_first_p50_times"
_TO_ALONE = "producer_to_alone_ratio"
_SQL_HELD = "sql/latency-held/10min"
_SQL_BESIDE = "sql/backlog-beside-producer"

_GOALS = (
    ("produce, times Kafka sync", "produce/java/1kB/4p/1x", "mb_per_s", "kafka-sync", 2.5),
    ("produce, times Kafka nosync", "produce/java/1kB/4p/1x", "mb_per_s", "kafka-nosync", 0.7),
    ("catch-up (Java), times Kafka", "catch-up/java/1kB/4p", "mb_per_s", "kafka-nosync", 1.0),
    ("catch-up, times Kafka", "catch-up/confluent/1kB/4p", "mb_per_s", "kafka-nosync", 1.0),
    ("tail, times Kafka", "tail/confluent/1kB/4p", "mb_per_s", "kafka-nosync", 1.0),
    ("5,000 partitions, times Kafka", _MANY, "records_per_s", "kafka-nosync", 0.9),
    ("10,000 partitions, times Kafka", _MOST, "records_per_s", "kafka-nosync", 0.9),
    ("acknowledgement p50, ms", "ack/confluent/1kB", "p50_ms", None, 1.5),
    ("end-to-end average, ms", "end-to-end/confluent/1kB", "mean_ms", None, 2.0),
    ("start, first time, s", "start/first-and-later", "first_s", None, 3.0),
    ("start, later, s", "start/first-and-later", "later_s", None, 1.0),
    ("start in a test, s", "start/in-a-test", "up_s", None, 2.0),
    ("broker idle, MB", "start/first-and-later", "gateway_idle_rss_mb", None, 150.0),
    ("join of 50 after the delay, s", _REBALANCE, "after_delay_s", None, 1.0),
    ("64 committers, commits/s", "groups/commits/bare/64x", "commits_per_s", None, 3000.0),
    ("transactions, times Kafka", _ONE, "transactions_per_s", "kafka-nosync", 2.0),
    ("with offsets, times Kafka", _WITH_OFFSETS, "transactions_per_s", "kafka-nosync", 12.0),
    ("8 producers, times Kafka", _EIGHT, "transactions_per_s", "kafka-nosync", 1.3),
    ("transaction p99, ms", _ONE, "p99_ms", None, 10.0),
    ("100 ms transactions, times none", _TIMED, "to_plain_ratio", None, 0.95),
    ("Pulsar produce, times Pulsar sync", _PULSAR, "mb_per_s", "pulsar-sync", 0.5),
    ("Pulsar consume, times Pulsar sync", _PULSAR_READ, "mb_per_s", "pulsar-sync", 0.6),
    ("Pulsar send p50, ms", _PULSAR_ONE, "p50_ms", None, 2.5),
    ("Pulsar send p50, times Pulsar sync", _PULSAR_ONE, "p50_ms", "pulsar-sync", 1.0),
    ("Pulsar receipts of acks, acks/s", "pulsar/acks/java/each", "acks_per_s", None, 5000.0),
    ("Pulsar transactions, times Pulsar", _PULSAR_TXN, "transactions_per_s", "pulsar-sync", 3.0),
    ("Pulsar commit p50, ms", _PULSAR_TXN, "commit_p50_ms", None, 4.0),
    ("16 in flight, times Pulsar", _PULSAR_TXNS, "transactions_per_s", "pulsar-sync", 0.8),
    ("Pulsar 100 ms transactions, times none", _PULSAR_TIMED, "to_plain_ratio", None, 0.9),
    ("Spark reads, times Kafka", "spark/read/100B/4p", "rows_per_s", "kafka-nosync", 0.9),
    ("Spark writes, times Kafka", "spark/write/100B/4p", "rows_per_s", "kafka-nosync", 0.6),
    ("exactly-once sink, times the stock sink", _SPARK_SINK, "to_stock_ratio", None, 1.0),
    ("quota, part that Java writes", "quotas/produce/java", "of_quota_ratio", None, 0.9),
    ("quota, part that librdkafka writes", _LIMITED, "of_quota_ratio", None, 0.9),
    ("quota, part that aiokafka writes", "quotas/produce/aiokafka", "of_quota_ratio", None, 0.9),
    ("beside a limited client, times alone", _BESIDE, "neighbour_ratio", None, 0.95),
    ("reads, writes of groups for 25,000 heartbeats", _STEADY, "group_table_accesses", None, 0.0),
    ("10,004 ACLs: produce, times without", "security/acls/produce", _RIGHTS, None, 0.97),
    ("10,004 ACLs: consume, times without", "security/acls/consume", _RIGHTS, None, 0.97),
    ("10,004 ACLs: speed of acks at p50", "security/acls/acks", _RIGHTS, None, 0.97),
    ("10,004 ACLs: speed of acks at p99", "security/acls/acks", "p99_ratio", None, 0.97),
    ("10,004 ACLs: Metadata of all", "security/acls/metadata-all", _RIGHTS, None, 0.97),
    ("10,004 ACLs: Metadata of one", "security/acls/metadata-one", _RIGHTS, None, 0.97),
    ("SASL_SSL to PLAINTEXT, produce, times Kafka's", _TLS, _TO_PLAIN, "kafka-nosync", 1.0),
    ("SASL_SSL to PLAINTEXT, consume, times Kafka's", _TLS_READ, _TO_PLAIN, "kafka-nosync", 1.0),
    ("SCRAM logins, times Kafka", _LOGINS, "logins_per_s", "kafka-nosync", 1.0),
    ("p99 while 5,000 log in again, times alone", _AGAIN, "p99_times", None, 2.0),
    ("p99 beside 100 wrong logins/s, times alone", _WRONG, "p99_times", None, 2.0),
    ("SQL, 1 session, times an outbox", "sql/produce/1x", _OUTBOX, None, 0.7),
    ("SQL, 16 sessions, times an outbox", "sql/produce/16x", _OUTBOX, None, 0.7),
    ("SQL, 64 sessions, times an outbox", "sql/produce/64x", _OUTBOX, None, 0.7),
    ("the same, COMMIT of 3 ms, 1 session", "sql/produce-3ms/1x", _OUTBOX, None, 0.7),
    ("the same, COMMIT of 3 ms, 16 sessions", "sql/produce-3ms/16x", _OUTBOX, None, 0.7),
    ("the same, COMMIT of 3 ms, 64 sessions", "sql/produce-3ms/64x", _OUTBOX, None, 0.7),
    ("COMMIT to consumer from idle, p50, ms", "sql/latency/idle", "p50_ms", None, 5.0),
    ("COMMIT to consumer from idle, most, ms", "sql/latency/idle", "most_ms", None, 20.0),
    ("COMMIT to consumer, 1,000/s, p50, ms", "sql/latency/1000tps", "p50_ms", None, 5.0),
    ("COMMIT to consumer, 1,000/s, p99, ms", "sql/latency/1000tps", "p99_ms", None, 20.0),
    ("10 min of a held snapshot, p50, last to first", _SQL_HELD, _LAST, None, 1.5),
    ("looks at the inbox, % of a core", "sql/looking", "looking_cpu_percent", None, 5.0),
    ("backlog of the inbox, records/s", "sql/backlog/200B", "records_per_s", None, 100_000.0),
    ("a producer beside a backlog, times alone", _SQL_BESIDE, _TO_ALONE, None, 0.7),
)


def goals(outcomes: Sequence[Outcome]) -> list[tuple[str, float, bool]]:
    """(goal in words, measured, reached) of those whose cases were run on us."""
    by_name = {outcome.case.name: outcome for outcome in outcomes}
    reached = []
    for text, case, figure, peer, bound in _GOALS:
        outcome = by_name.get(case)
        ours = outcome.figures(US).get(figure) if outcome else None
        if outcome is None or ours is None:
            continue
        if peer is None and unit_of(figure).more_is_better:
            reached.append((f"{text} ≥ {bound:,g}", ours, ours >= bound))
        elif peer is None:
            reached.append((f"{text} ≤ {bound:g}", ours, ours <= bound))
        elif theirs := outcome.figures(peer).get(figure):
            ratio, is_least = ours / theirs, unit_of(figure).more_is_better
            is_reached = ratio >= bound if is_least else ratio <= bound
            reached.append((f"{text} {'≥' if is_least else '≤'} {bound:g}", ratio, is_reached))
    peaks = [
        turn["gateway_peak_rss_mb"]
        for outcome in outcomes
        for turn in outcome.turns.get(US, [])
        if "gateway_peak_rss_mb" in turn
    ]
    if peaks:
        reached.append(("broker at full load, MB ≤ 400", max(peaks), max(peaks) <= 400))
    return reached


def goals_table(outcomes: Sequence[Outcome]) -> Table:
    grid = Table(title="goals")
    for column in ("goal", "measured", ""):
        grid.add_column(column)
    for text, measured, reached in goals(outcomes):
        grid.add_row(text, shown(measured), "[green]reached" if reached else "[yellow]not yet")
    return grid


# --- the plot -------------------------------------------------------------------------------------


def plot(outcomes: Sequence[Outcome], brokers: Sequence[str], path: Path) -> None:
    """Bars of the headline figures, one panel a unit; the file's ending chooses PNG or SVG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        if any(outcome.headline(name) is not None for name in brokers):
            panels.setdefault(unit_of(outcome.case.headline).shown, []).append(outcome)
    if not panels:
        return
    rows = [len(panel) for panel in panels.values()]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(9, 0.28 * (len(brokers) + 1) * sum(rows) + 1.2 * len(rows)),
        height_ratios=[count + 0.5 for count in rows],
        squeeze=False,
        layout="constrained",
    )
    for axis, (unit, panel) in zip(axes[:, 0], panels.items(), strict=True):
        series = [(name, [outcome.headline(name) for outcome in panel]) for name in brokers]
        if any(outcome.copies_mb_per_s for outcome in panel):
            series.append(("raw COPY", [outcome.copy() for outcome in panel]))
        height = 0.8 / len(series)
        for index, (name, values) in enumerate(series):
            places = [place + index * height for place in range(len(panel))]
            bars = axis.barh(places, [value or 0 for value in values], height, label=name)
            axis.bar_label(bars, [shown(value) for value in values], padding=2, fontsize=7)
        middle = 0.4 - height / 2
        axis.set_yticks([place + middle for place in range(len(panel))])
        axis.set_yticklabels([outcome.case.name for outcome in panel], fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel(unit)
        axis.margins(x=0.12)
    axes[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=140)
    pyplot.close(figure)
