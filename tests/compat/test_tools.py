"""How Kafka's Java tools are found: what is missing is said in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.java import tools


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    tools.find_java.cache_clear()
    tools.class_path.cache_clear()


def test_no_java_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert tools.unavailable() == "no java found: install a Java 17+ runtime"


def test_an_old_java_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert tools.unavailable() == "java is 11.0.2: 17+ needed"


@pytest.mark.java
def test_no_maven_is_a_reason_unless_the_jars_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tools.find_java()
    monkeypatch.setattr(tools, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.unavailable() == "no mvn found: Maven fetches the clients' jars; install maven"


@pytest.mark.java
def test_a_tool_runs_and_reports() -> None:
    done = tools.java_tool("org.apache.kafka.tools.GetOffsetShell", "--version")
    assert done.stdout.split()[0].startswith("4.")


@pytest.mark.java
def test_a_failing_tool_shows_what_it_said() -> None:
    with pytest.raises(RuntimeError, match="bootstrap-server"):
        tools.java_tool("org.apache.kafka.tools.TopicCommand", "--list")
