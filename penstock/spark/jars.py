"""The four jars of Spark's Kafka connector: found on this machine, else fetched from Maven Central.

Knows Maven's coordinates and where jars usually lie; must not know Spark's API, nor anything of the
server. Standard library only, so that it runs where nothing but Python is installed.

The connector's own pom says which kafka-clients and commons-pool2 belong to it. A whole set is kept
in a directory of the cache, named after the version of Spark, and found there the next time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

CENTRAL: Final = "https://repo.maven.apache.org/maven2"
SCALA: Final = "2.13"  # what PySpark 4 is built with
TIMEOUT_S: Final = 60.0
MAVEN_PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"

# Where the token provider of a release cannot be had: this one runs with every Spark 4 so far.
ANY_TOKEN_PROVIDER: Final = "4.0.0"


class Unready(RuntimeError):
    """Something that Spark needs is missing; the message is one sentence for people."""


class JarsUnavailable(Unready):
    """The connector's jars were not found and could not be fetched."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """Maven's coordinates."""

    group: str
    name: str
    version: str

    def file_name(self, kind: str = "jar") -> str:
        return f"{self.name}-{self.version}.{kind}"

    def path(self, kind: str = "jar") -> str:
        """Where it lies in a repository laid out as Maven's are."""
        return "/".join((*self.group.split("."), self.name, self.version, self.file_name(kind)))

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


def connector(spark_version: str) -> Artifact:
    """spark-sql-kafka: the source and the sink."""
    return Artifact("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA}", spark_version)


def connector_jars(
    spark_version: str | None = None, *, cache: Path | None = None, offline: bool = False
) -> list[Path]:
    """The four jars for a version of Spark (default: the installed one's).

    offline: only what lies on this machine. Raises JarsUnavailable.
    """
    version = spark_version or installed_spark()
    if not re.fullmatch(r"[4-9]\.\d+\.\d+[\w.-]*", version):
        raise JarsUnavailable(
            f"'{version}' is no version of Spark 4 or later, written as for example 4.2.0."
        )
    jars = (cache or default_cache()) / version
    if found := whole_set(jars):
        return found
    jars.parent.mkdir(parents=True, exist_ok=True)
    # All or nothing: an interrupted fetch, or another process's, is never taken for a whole one.
    with tempfile.TemporaryDirectory(prefix=".part-", dir=jars.parent) as unfinished:
        _collect(version, Path(unfinished), offline)
        whole = Path(unfinished) / "whole"
        with contextlib.suppress(OSError):  # somebody else was quicker
            whole.rename(jars)
    if found := whole_set(jars):
        return found
    raise JarsUnavailable(f"{jars} holds something else than the connector's jars: remove it.")


def whole_set(directory: Path) -> list[Path]:
    """The jars in a directory of the cache, the connector first, or nothing."""
    jars = sorted(directory.glob("*.jar"), key=lambda jar: ("sql-kafka" not in jar.name, jar.name))
    return [jar.resolve() for jar in jars] if len(jars) == 4 else []


def installed_spark() -> str:
    """The version of Spark here: of $SPARK_HOME, else of the pyspark package."""
    home = os.environ.get("SPARK_HOME")
    release = Path(home, "RELEASE") if home else None
    shown = release.read_text() if release and release.is_file() else ""
    if found := re.match(r"Spark (\S+)", shown):
        return found[1]
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        raise JarsUnavailable(
            "PySpark is not installed: pip install 'penstock[spark]', or name the version you run "
            "with --spark-version."
        ) from None


def default_cache() -> Path:
    """$PENSTOCK_CACHE, else the user's cache directory."""
    if chosen := os.environ.get("PENSTOCK_CACHE"):
        return Path(chosen) / "spark-jars"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock" / "spark-jars"


# --- one set ---


def _collect(version: str, work: Path, offline: bool) -> None:
    """Puts the four jars into `work`/whole."""
    whole = work / "whole"
    whole.mkdir()
    source = Source(work, offline)
    first = source.first([connector(each) for each in connector_versions(version)])
    pom = source.get(first, "pom")
    if pom is None:
        raise JarsUnavailable(f"The pom of {first} could not be had, which names the other jars.")
    needed = dependencies(pom)
    provider = needed[f"spark-token-provider-kafka-0-10_{SCALA}"]
    rest = [
        [provider, Artifact(provider.group, provider.name, ANY_TOKEN_PROVIDER)],
        [needed["kafka-clients"]],
        [needed["commons-pool2"]],
    ]
    for artifact in (first, *map(source.first, rest)):
        jar = source.get(artifact, "jar")
        assert jar is not None  # first() has seen it
        shutil.copyfile(jar, whole / artifact.file_name())


def connector_versions(spark_version: str) -> list[str]:
    """The release's own connector, else those of the same line before it."""
    line, _, patch = spark_version.rpartition(".")
    if not patch.isdigit():
        return [spark_version]
    return [f"{line}.{number}" for number in range(int(patch), -1, -1)]


def dependencies(pom: Path) -> dict[str, Artifact]:
    """What a published pom of Spark names with a version, by artifact."""
    space = "{http://maven.apache.org/POM/4.0.0}"
    found: dict[str, Artifact] = {}
    for node in ElementTree.parse(pom).getroot().iterfind(f"{space}dependencies/{space}dependency"):
        group, name, version = (
            (node.findtext(f"{space}{part}") or "").replace("${scala.binary.version}", SCALA)
            for part in ("groupId", "artifactId", "version")
        )
        if version:
            found.setdefault(name, Artifact(group, name, version))
    return found


class Source:
    """Files of artifacts: from this machine, else by Maven where it is there, else over HTTPS."""

    def __init__(self, work: Path, offline: bool) -> None:
        self._work = work
        self._offline = offline
        self._said: list[str] = []

    def first(self, candidates: Sequence[Artifact]) -> Artifact:
        """The first whose jar can be had. Raises JarsUnavailable."""
        for artifact in candidates:
            if self.get(artifact, "jar") is not None:
                return artifact
        where = "on this machine" if self._offline else f"here or at {CENTRAL}"
        said = f" ({self._said[-1]})" if self._said else ""
        raise JarsUnavailable(f"{candidates[0]} was not found {where}{said}.")

    def get(self, artifact: Artifact, kind: str) -> Path | None:
        fetched = self._work / artifact.file_name(kind)
        if fetched.is_file():
            return fetched
        for place in local_places(artifact, kind):
            if place.is_file() and intact(place):
                return place
        if self._offline:
            return None
        if maven := shutil.which("mvn"):
            self._copy_with_maven(maven, artifact, kind)
        if not fetched.is_file():
            self._download(artifact, kind)
        return fetched if fetched.is_file() and intact(fetched) else None

    def _copy_with_maven(self, maven: str, artifact: Artifact, kind: str) -> None:
        """Maven knows its user's mirrors and proxies. What it cannot do is tried without it."""
        command = [maven, "-q", "-B", MAVEN_PLUGIN, f"-Dartifact={artifact}:{kind}"]
        subprocess.run(
            [*command, f"-DoutputDirectory={self._work}", "-Dmdep.useBaseVersion=true"],
            cwd=self._work,  # no pom of somebody else's project
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )

    def _download(self, artifact: Artifact, kind: str) -> None:
        address = f"{CENTRAL}/{artifact.path(kind)}"
        part = self._work / "download"
        try:
            with (
                urllib.request.urlopen(
                    address, timeout=TIMEOUT_S, context=ssl.create_default_context()
                ) as answer,
                part.open("wb") as file,
            ):
                shutil.copyfileobj(answer, file)
        except urllib.error.HTTPError as refused:
            self._said.append(f"{refused.code} for {artifact}")
        except OSError as failed:  # URLError is one; a connection cut short another
            self._said.append(str(getattr(failed, "reason", failed)))
        else:
            part.rename(self._work / artifact.file_name(kind))


def local_places(artifact: Artifact, kind: str) -> Iterator[Path]:
    """Where a file of an artifact may lie already."""
    name = artifact.file_name(kind)
    if home := os.environ.get("SPARK_HOME"):
        yield Path(home, "jars", name)
    if (package := util.find_spec("pyspark")) and package.origin:
        yield Path(package.origin).parent / "jars" / name
    yield Path.home() / ".m2" / "repository" / artifact.path(kind)
    ivy = f"{artifact.group}_{artifact.name}-{artifact.version}.{kind}"
    for version in (".ivy2.5.2", ".ivy2"):
        yield Path.home() / version / "jars" / ivy


def intact(path: Path) -> bool:
    """Whether a jar was written to its end (its directory is there), a pom is a document."""
    if path.suffix == ".jar":
        return zipfile.is_zipfile(path)
    try:
        ElementTree.parse(path)
    except ElementTree.ParseError:
        return False
    return True


def with_jars(
    given: Mapping[str, str], name: str, find: Callable[[], Sequence[Path]]
) -> dict[str, str]:
    """`spark.jars` with what `find` gives; nothing where the user has brought such jars himself.

    name: by which a path in `spark.jars`, or a coordinate in `spark.jars.packages`, is one of them.
    """
    jars = given.get("spark.jars", "")
    if name in jars or name in given.get("spark.jars.packages", ""):
        return {}
    return {"spark.jars": ",".join(filter(None, [jars, *map(str, find())]))}


# --- the command ---


def main(argv: Sequence[str]) -> int:
    """`penstock pipeline jars`: prints what to give to `--jars` and `spark.jars`."""
    parser = argparse.ArgumentParser(
        prog="penstock pipeline jars",
        description="Finds or fetches the four jars of Spark's Kafka connector and prints their "
        "paths with commas between, as --jars and spark.jars take them: "
        'spark-submit --jars "$(penstock pipeline jars)" …',
    )
    parser.add_argument("--spark-version", metavar="X.Y.Z", help="default: the installed one")
    parser.add_argument("--cache", type=Path, metavar="DIR", help=f"default: {default_cache()}")
    parser.add_argument("--offline", action="store_true", help="only what lies on this machine")
    parser.add_argument("--json", action="store_true", help="print a JSON list instead")
    options = parser.parse_args(argv)
    try:
        jars = connector_jars(options.spark_version, cache=options.cache, offline=options.offline)
    except Unready as missing:
        sys.stderr.write(f"{missing}\n")
        return 2
    words = [str(jar) for jar in jars]
    sys.stdout.write((json.dumps(words, indent=2) if options.json else ",".join(words)) + "\n")
    return 0
