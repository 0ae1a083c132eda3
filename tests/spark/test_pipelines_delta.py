"""Archive and replay with a Delta lake, on a Spark of its own: it needs two jars more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.spark.jars import JarsUnavailable
from penstock.spark.pipelines.delta import delta_jars, settings
from tests.conftest import Gateway
from tests.spark.records import Written, read, write

PATIENCE_S = 550.0

SCRIPT = """
import json, sys
from penstock.spark.pipelines import archive, delta, replay
from penstock.spark.session import session

spark = session("delta", "local[2]", settings={**delta.settings({}), "spark.log.level": "ERROR"})
archived, elsewhere, replayed = (json.loads(argument) for argument in sys.argv[1:])
codes = [archive.main(archived), archive.main(archived), archive.main(elsewhere)]
codes.append(replay.main(replayed))
print(codes)
spark.stop()
"""


@pytest.fixture(scope="session")
def jars() -> list[Path]:
    try:
        return delta_jars()
    except JarsUnavailable as missing:
        pytest.skip(str(missing))


@pytest.mark.variant  # a minute and more; `make variants`
@pytest.mark.timeout(900)
def test_a_delta_lake_holds_each_record_once_and_gives_them_back(
    jars: list[Path], gateway: Gateway, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, target = make_topic(partitions=2), make_topic(partitions=2)
    write(gateway.bootstrap, source, [Written(b"%d" % n, b"k%d" % n) for n in range(40)])
    lake = str(tmp_path / "lake")
    where = ["--lake", lake, "--format", "delta", "--bootstrap-server", gateway.bootstrap]
    archived = ["--from", source, *where, "--available-now"]
    elsewhere = [*archived, "--checkpoint", str(tmp_path / "another")]
    arguments = [json.dumps(each) for each in (archived, elsewhere, ["--to", target, *where])]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.endswith("[0, 0, 1, 0]\n"), done.stdout + done.stderr
    assert "was written with another checkpoint" in done.stderr
    assert Path(lake, "_delta_log").is_dir()
    found = [(each.partition, each.key, each.value) for each in read(gateway.bootstrap, target)]
    assert found == [
        (each.partition, each.key, each.value) for each in read(gateway.bootstrap, source)
    ]
    assert len(found) == 40


def test_jars_and_settings_of_the_users_own_are_kept(jars: list[Path]) -> None:
    assert "spark.jars" not in settings({"spark.jars.packages": "io.delta:delta-spark_2.13:4.4.0"})
    mine = settings({"spark.jars": "/mine.jar", "spark.sql.extensions": "Mine"})
    assert mine["spark.jars"].split(",") == ["/mine.jar", *map(str, jars)]
    assert mine["spark.sql.extensions"] == "Mine"
