"""Runs Apache Kafka's own command-line tools (and its server) from the jars named in `pom.xml`.

Knows java, Maven and a class path, also of another pom; must not know what is tested or measured
with them. The jars are copied once into `.cache/java/` of the checkout, under a name made from the
pom's content.

    from compat.java.tools import java_tool, unavailable
    if reason := unavailable(): ...                      # one sentence: what is missing, what to do
    java_tool("org.apache.kafka.tools.GetOffsetShell", "--bootstrap-server", address)
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

POM = Path(__file__).with_name("pom.xml")
SHELL = Path(__file__).with_name("ToolShell.java")
CACHE = POM.parents[2] / ".cache" / "java"

# Kafka's clients need Java 11, its server and tools 17.
MINIMUM_JAVA = 17
# C1 only: where a JVM lives for a second, the optimising compiler would cost more than it gives.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


class JavaUnavailable(RuntimeError):
    """Java, Maven or the jars are missing; the message says which and what to do about it."""


@cache
def find_java() -> Path:
    """The java launcher: `$JAVA_HOME/bin/java`, else the first on PATH; raises JavaUnavailable."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    if not found.is_file():
        raise JavaUnavailable(f"no java found: install a Java {MINIMUM_JAVA}+ runtime")
    shown = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = shown.partition('version "')[2].partition('"')[0]
    major = version.split(".")[0].split("-")[0]
    if not major.isdigit() or int(major) < MINIMUM_JAVA:
        raise JavaUnavailable(f"java is {version or 'of no known version'}: {MINIMUM_JAVA}+ needed")
    return found


@cache
def class_path(pom: Path = POM) -> str:
    """The class path of the pom's jars, copied by Maven on first use; raises JavaUnavailable."""
    name = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    return str(made_once(CACHE / name, lambda jars: _copy_jars(pom, jars)) / "*")


@cache
def classes(source: Path, pom: Path) -> str:
    """The class path of one file and its pom's jars; compiled on first use, else as class_path."""
    jars = class_path(pom)
    name = hashlib.sha256(pom.read_bytes() + source.read_bytes()).hexdigest()[:12]

    def compile_into(directory: Path) -> None:
        module = ("--module", "jdk.compiler/com.sun.tools.javac.Main")
        # Unlike the launchers, the compiler itself knows no `*`.
        each = os.pathsep.join(str(jar) for jar in sorted(Path(jars).parent.glob("*.jar")))
        options = ("-nowarn", "-cp", each, "-d", directory, source)
        compiled = subprocess.run(
            [find_java(), *module, *options], capture_output=True, text=True, check=False
        )
        if compiled.returncode:
            said = (compiled.stderr or compiled.stdout).strip()
            raise JavaUnavailable(f"{source.name} is not compiled (is this a JDK?): {said}")

    return f"{made_once(CACHE / f'{source.stem}-{name}', compile_into)}{os.pathsep}{jars}"


def made_once(directory: Path, make: Callable[[Path], None]) -> Path:
    """A directory of a cache, made on first use: `make` fills what it is given, or raises.

    Safe to call from several processes at once: the first makes it, the others wait for it.
    """
    if not directory.is_dir():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with (directory.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not directory.is_dir():
                unfinished = directory.with_suffix(".part")
                shutil.rmtree(unfinished, ignore_errors=True)
                make(unfinished)
                # All or nothing: what was interrupted is never taken for a whole one.
                unfinished.rename(directory)
    return directory


def _copy_jars(pom: Path, jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JavaUnavailable("no mvn found: Maven fetches the clients' jars; install maven")
    goal = "dependency:copy-dependencies"
    copied = subprocess.run(
        [maven, "-q", "-B", "-f", pom, goal, f"-DoutputDirectory={jars}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if copied.returncode:
        said = [line for line in copied.stdout.splitlines() if "ERROR" in line] or ["nothing said"]
        raise JavaUnavailable(f"mvn {goal} failed (is there a network?): {said[0]}")


def unavailable(pom: Path = POM) -> str | None:
    """Why the Java tools cannot run here, in one sentence, or None if they can."""
    try:
        find_java()
        class_path(pom)
    except JavaUnavailable as missing:
        return str(missing)
    return None


def java_command(
    main: str | Path,
    *arguments: str | Path | int,
    heap: str = "512m",
    log_level: str = "warn",
    jvm: Sequence[str] = (),
    classes: str | None = None,
    pom: Path = POM,
) -> list[str]:
    """The command line that runs `main`: a class name, or the path of a single-file Java source.

    `heap` is the JVM's -Xmx; `log_level` is slf4j's (off, error, warn, info, debug), to stderr;
    `jvm` are further options of the JVM itself; `classes` is the class path, else that of
    the jars that `pom` names. Raises JavaUnavailable.
    """
    return [
        str(find_java()),
        f"-Xmx{heap}",
        f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
        *jvm,
        "-cp",
        class_path(pom) if classes is None else classes,
        str(main),
        *map(str, arguments),
    ]


def java_tool(
    main: str | Path,
    *arguments: str | Path | int,
    stdin: str | None = None,
    timeout: float = 120.0,
    check: bool = True,
    heap: str = "512m",
    log_level: str = "warn",
    jvm: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    pom: Path = POM,
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end and return its exit code, stdout and stderr as text.

    `timeout` in seconds; after it the JVM is killed and subprocess.TimeoutExpired raised. With
    `check` a non-zero exit raises RuntimeError that shows both outputs (Kafka's tools often
    report on stdout). Raises JavaUnavailable.
    """
    command = java_command(main, *arguments, heap=heap, log_level=log_level, jvm=jvm, pom=pom)
    # A session of its own: Ctrl-C reaches Python first, which then kills the JVM below.
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=None if environment is None else {**os.environ, **environment},
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if check and process.returncode:
        raise RuntimeError(f"{main} ended with {process.returncode}:\n{out}\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


# Runs a tool: its main class and arguments.
RunTool = Callable[..., subprocess.CompletedProcess[str]]


@contextlib.contextmanager
def tool_shell(jvm: Sequence[str] = (), timeout: float = 120.0) -> Iterator[RunTool]:
    """One JVM for many short commands, one at a time; yields what runs a tool in it.

    stdout of a result is what the tool printed on either output. With `check` (the default) an exit
    that is not 0 raises RuntimeError. A tool that takes longer than `timeout` seconds raises
    TimeoutError and takes the JVM with it. Raises JavaUnavailable.
    """
    with subprocess.Popen(
        java_command(SHELL, log_level="error", jvm=jvm),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run(
            main: str, *arguments: str | Path | int, check: bool = True
        ) -> subprocess.CompletedProcess[str]:
            words = [main, *map(str, arguments)]
            process.stdin.write("\x1f".join(words) + "\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], timeout)[0]:
                process.kill()
                raise TimeoutError(f"{main} takes longer than {timeout} s")
            code, _, printed = process.stdout.readline().partition(" ")
            shown = base64.b64decode(printed).decode()
            if check and code != "0":
                raise RuntimeError(f"{main} ended with {code}:\n{shown}")
            return subprocess.CompletedProcess(words, int(code), shown, "")

        try:
            yield run
        finally:
            process.kill()
