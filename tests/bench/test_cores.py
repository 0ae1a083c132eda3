"""bench.cores: the simulation keeps to what can be reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.cores import Costs, simulated

CHEAP_COMMITS = Costs(
    gateway_us=4.0, postgres_us=6.0, commit_us=0.0, sync_s=1e-6, disk_mb_per_s=1e9
)


def test_one_core_does_what_its_time_is_enough_for() -> None:
    found = simulated(1, 1, CHEAP_COMMITS)
    assert found.records_per_s == pytest.approx(1e6 / 10, rel=0.02)
    assert found.cores_busy == pytest.approx(1, abs=0.01)


def test_one_broker_cannot_use_more_than_its_slower_half() -> None:
    """Its session in PostgreSQL works while its own core does; neither is divided."""
    found = simulated(16, 1, CHEAP_COMMITS)
    assert found.records_per_s == pytest.approx(1e6 / 6, rel=0.02)


@pytest.mark.parametrize("cores", [2, 8, 32])
def test_a_broker_a_core_uses_all_of_them(cores: int) -> None:
    found = simulated(cores, cores, CHEAP_COMMITS)
    assert found.records_per_s == pytest.approx(cores * 1e6 / 10, rel=0.02)


def test_the_disk_is_where_it_ends() -> None:
    """Each byte is written to WAL and to its table."""
    on_disk = replace(CHEAP_COMMITS, disk_mb_per_s=500.0, window_records=1024)
    for cores in (8, 32):
        found = simulated(cores, cores, on_disk, seconds=4.0)
        assert found.records_per_s * 1_000 * on_disk.wal_share * 2 == pytest.approx(5e8, rel=0.15)
        assert found.disk_busy > 0.9


def test_commits_share_the_syncs_of_a_slow_disk() -> None:
    slow = replace(CHEAP_COMMITS, sync_s=0.005, window_records=256)
    assert simulated(8, 8, slow).commits_a_sync >= 4
    assert simulated(8, 1, slow).commits_a_sync == 1


def test_what_a_commit_costs_weighs_where_flushes_are_small() -> None:
    dear = replace(CHEAP_COMMITS, commit_us=500.0)
    found = [
        simulated(1, 1, replace(dear, request_records=records)).records_per_s
        for records in (64, 1024)
    ]
    assert found == [pytest.approx(1e6 / (10 + 500 / records), rel=0.03) for records in (64, 1024)]
