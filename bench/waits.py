"""What brokers' sessions wait for: samples of pg_stat_activity, `python -m bench.waits --help`.

Must not know what is going on meanwhile. A session that waits for nothing is on a core, or wants
one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import psycopg

ON_A_CORE = "(a core)"
_ACTIVE = """
SELECT coalesce(wait_event_type || ':' || wait_event, %s), count(*) FROM pg_stat_activity
WHERE application_name = 'penstock' AND state = 'active' AND backend_type = 'client backend'
  AND datname = current_database()
GROUP BY 1
"""


def sampled(url: str, seconds: float, every_s: float = 0.01) -> tuple[Counter[str], int]:
    """How many active sessions were found at each wait event, and in how many samples."""
    found: Counter[str] = Counter()
    samples = 0
    with psycopg.connect(url, autocommit=True) as connection:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found.update(dict(connection.execute(_ACTIVE, [ON_A_CORE]).fetchall()))
            samples += 1
            time.sleep(every_s)
    return found, samples


def table(found: Counter[str], samples: int) -> str:
    """A line an event: its share of the active sessions' time."""
    every = found.total() or 1
    lines = [f"{every / max(1, samples):.2f} sessions active on average, {samples} samples"]
    lines += [f"{100 * count / every:6.1f} %  {event}" for event, count in found.most_common()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.waits", description=__doc__)
    parser.add_argument("--database-url", required=True)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args(arguments)
    print(table(*sampled(options.database_url, options.seconds)))


if __name__ == "__main__":
    sys.exit(main())
