"""The flights through Spark, with fewer flights; and what is wrong with totals is noticed."""

from __future__ import annotations

import io
import json
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from demo import pipeline
from demo.flights import DemoFailed, flights

# Each kill starts a Spark more: none in CI, in `make faults` as many as in `make demo-spark`.
KILLS = 2 if "PENSTOCK_SPARK_FAULT_SECONDS" in os.environ else 0


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_delays_are_as_pandas_computes_them_though_drivers_are_killed(gateway: Any) -> None:
    output = io.StringIO()
    code = pipeline.main(
        [
            *(
                "--bootstrap-server",
                gateway.bootstrap,
                "--topic",
                f"flights-{uuid.uuid4().hex[:8]}",
            ),
            *("--limit", "3000", "--kills", str(KILLS)),
        ],
        console=Console(file=output, width=160),
    )
    shown = output.getvalue()
    assert code == 0, shown
    assert shown.count("every total, no change twice") == 2, shown
    assert shown.count("  killed\n") == 2 * KILLS


def change(key: str, count: int, minutes: int) -> pipeline.Record:
    return key.encode(), json.dumps({"flights": count, "minutes": minutes}).encode()


EXPECTED = {"UA 2013-01-01T05": (2, 12), "B6 2013-01-01T05": (1, -7)}


def test_a_total_that_is_wrong_missing_or_came_twice_is_noticed() -> None:
    right = [
        change("UA 2013-01-01T05", 1, 5),
        change("B6 2013-01-01T05", 1, -7),
        change("UA 2013-01-01T05", 2, 12),
    ]
    assert list(pipeline.problems(right, EXPECTED)) == []
    assert list(pipeline.problems([*right, right[2]], EXPECTED)) == ["1 totals came twice"]
    (missing,) = pipeline.problems(right[:2], EXPECTED)
    assert missing.startswith("1 totals are wrong, of UA")
    (unknown,) = pipeline.problems([*right, change("AA x", 1, 1)], EXPECTED)
    assert unknown.startswith("1 totals are wrong, of AA")


def test_pandas_counts_flights_that_never_arrived() -> None:
    records = flights(1000)
    totals = pipeline.expected_totals(records)
    assert sum(count for count, _ in totals.values()) == 1000
    arrived = [json.loads(value)["arr_delay"] for _, value in records]
    assert sum(minutes for _, minutes in totals.values()) == sum(each or 0 for each in arrived)
    assert None in arrived


def test_a_pipeline_that_fails_fails_the_demo(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    wrong = ["audit", "--topic", "t", "--bootstrap-server", "127.0.0.1:9"]
    with pytest.raises(DemoFailed, match="No broker answers"):
        pipeline.run_pipeline(wrong, None, tmp_path / "log", console)
