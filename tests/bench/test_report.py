"""The benchmark's own arithmetic: units, sums of clients, medians, goals, tool output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import psutil
import pytest

pytest.importorskip("confluent_kafka")

from bench import clients, report
from bench.brokers import Broker
from bench.case import Case, charged, throughput, unit_of
from bench.clients import added_up
from bench.processes import ProcessGroup
from bench.runner import Outcome


def nothing(broker: Broker) -> dict[str, float]:
    raise AssertionError(f"{broker.name} is not to be run")


def outcome(name: str, headline: str, **turns: list[dict[str, float]]) -> Outcome:
    """An outcome with the turns of brokers (kafka_sync stands for kafka-sync)."""
    named = {broker.replace("_", "-"): figures for broker, figures in turns.items()}
    return Outcome(Case(name, headline, nothing), named)


def test_the_longest_fitting_suffix_names_the_unit() -> None:
    assert unit_of("first_mb_per_s").shown == "MB/s"
    assert unit_of("records_per_s").shown == "/s"
    assert unit_of("later_s").shown == "s"
    assert unit_of("later_s").more_is_better is False
    assert unit_of("gateway_us_per_record").shown == "µs"


def test_clients_that_overlap_are_timed_from_the_first_to_the_last() -> None:
    total = added_up(
        [
            {"records": 10, "begun": 1.0, "ended": 3.0, "p50_ms": 2.0, "cpu_s": 0.5},
            {"records": 20, "begun": 2.0, "ended": 5.0, "p50_ms": 4.0, "cpu_s": 0.5},
        ]
    )
    assert (total["records"], total["seconds"], total["cpu_s"]) == (30, 4.0, 1.0)
    assert total["p50_ms"] == 3.0
    assert throughput(total, 1_000_000)["mb_per_s"] == 7.5


def test_only_the_tools_final_line_counts() -> None:
    said = (
        "100 records sent, 20.0 records/sec (0.02 MB/sec), 5.0 ms avg latency, 9.0 ms max.\n"
        "300 records sent, 53.5 records/sec (0.05 MB/sec), 534.97 ms avg latency, "
        "1108.00 ms max latency, 477 ms 50th, 1009 ms 95th, 1062 ms 99th, 1090 ms 99.9th.\n"
    )
    [final] = clients._PRODUCED.findall(said)
    assert final == ("300", "53.5", "534.97", "477", "1009", "1062")


def test_a_goal_against_a_peer_is_a_ratio_of_medians() -> None:
    measured = outcome(
        "produce/java/1kB/4p/1x",
        "mb_per_s",
        penstock=[{"mb_per_s": 10.0}, {"mb_per_s": 90.0}, {"mb_per_s": 60.0}],
        kafka_sync=[{"mb_per_s": 20.0}],
        kafka_nosync=[{"mb_per_s": 100.0}],
    )
    assert report.goals([measured]) == [
        ("produce, times Kafka sync ≥ 2.5", 3.0, True),
        ("produce, times Kafka nosync ≥ 0.7", 0.6, False),
    ]


def test_a_latency_is_to_be_no_larger_than_the_peers() -> None:
    def measured(ours: float) -> Outcome:
        turns = {"penstock": [{"p50_ms": ours}], "pulsar_sync": [{"p50_ms": 2.0}]}
        return outcome("pulsar/send-sync/java/1KiB", "p50_ms", **turns)

    text = "Pulsar send p50, times Pulsar sync ≤ 1"
    assert (text, 0.75, True) in report.goals([measured(1.5)])
    assert (text, 1.25, False) in report.goals([measured(2.5)])


def test_every_goal_names_a_case_that_exists() -> None:
    from bench.__main__ import GROUPS
    from bench.security.cases import cases as security_cases
    from bench.spark.cases import Engine
    from bench.spark.cases import cases as spark_cases

    cases = {case.name for group in GROUPS for case in group.cases(1.0)}
    cases |= {case.name for case in security_cases(1.0)}
    cases |= {case.name for case in spark_cases(cast(Engine, None))}  # nothing is run
    assert {goal[1] for goal in report._GOALS} <= cases


def test_case_names_are_unique() -> None:
    from bench.__main__ import GROUPS

    names = [case.name for group in GROUPS for case in group.cases(1.0)]
    assert len(names) == len(set(names))


def test_a_failed_broker_leaves_the_table_and_the_plot_whole(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    measured = outcome("ack/confluent/1kB", "p50_ms", penstock=[{"p50_ms": 0.5}])
    measured.failed["kafka-sync"] = "ClientFailed: gone"
    assert report.table([measured], ["penstock", "kafka-sync"]).row_count == 1
    report.plot([measured], ["penstock", "kafka-sync"], tmp_path / "plot.svg")
    assert "ack/confluent/1kB" in (tmp_path / "plot.svg").read_text()


def test_a_group_leaves_out_what_is_excluded() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True
    ) as child:
        try:
            whole = {process.pid for process in ProcessGroup(os.getpid()).members()}
            part = {process.pid for process in ProcessGroup(os.getpid(), (child.pid,)).members()}
        finally:
            child.kill()
    assert child.pid in whole
    assert child.pid not in part
    assert os.getpid() in part


def test_cpu_of_children_that_have_ended_still_counts() -> None:
    group = ProcessGroup(os.getpid())
    broker = Broker("own", "", {"server": group})
    before = broker.cpu_seconds()
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    figures = charged(broker, before, records=1, client_cpu_s=2e-6)
    assert figures["server_us_per_record"] > 50_000
    assert figures["client_us_per_record"] == 2.0


def test_a_process_that_is_gone_counts_for_nothing() -> None:
    unused = max(psutil.pids()) + 1_000_000
    assert ProcessGroup(unused).cpu_seconds() == 0
    assert ProcessGroup(unused).memory().rss == 0
