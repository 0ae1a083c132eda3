"""`penstock tokens`: keys and tokens, as `bin/pulsar tokens` makes them."""

from __future__ import annotations

import base64
import json
import stat
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.main import app

SECRET = base64.b64encode(bytes(range(32))).decode()


def tokens(*arguments: str | Path, pipe: str = "", **environment: str) -> Result:
    return CliRunner().invoke(app, ["tokens", *map(str, arguments)], input=pipe, env=environment)


def made(*arguments: str | Path) -> str:
    done = tokens("create", *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout.strip()


def whose(token: str, *key: str | Path) -> dict[str, object]:
    done = tokens("validate", *key, token)
    assert done.exit_code == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("algorithm", "size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_key_makes_and_checks_tokens(tmp_path: Path, algorithm: str, size: int) -> None:
    path = tmp_path / "secret.key"
    assert tokens("create-secret-key", "--output", path, "-a", algorithm).exit_code == 0
    assert len(path.read_bytes()) == size
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = made("--secret-key", path.as_uri(), "--subject", "alice")
    assert whose(token, "--secret-key", path) == {"sub": "alice"}
    header = tokens("show", token).stdout.splitlines()[0]
    assert json.loads(header)["alg"] == algorithm
    shown = tokens("create-secret-key", "-a", algorithm).stdout.strip()
    assert whose(made("-sk", shown, "-s", "bob"), "-sk", f"data:;base64,{shown}") == {"sub": "bob"}
    assert tokens("create-secret-key", "-o", path, "--base64").exit_code == 0
    assert len(base64.b64decode(path.read_bytes())) == 32


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
def test_a_pair_of_keys_makes_and_checks_tokens(tmp_path: Path, algorithm: str) -> None:
    private, public = tmp_path / "private.key", tmp_path / "public.key"
    files = ("--output-private-key", private, "--output-public-key", public)
    assert tokens("create-key-pair", *files, "-a", algorithm).exit_code == 0
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    token = made("--private-key", private, "--subject", "alice")
    assert whose(token, "--public-key", public, "-a", algorithm) == {"sub": "alice"}
    refused = tokens("create", "--private-key", public, "-s", "alice")
    assert (refused.exit_code, "no private key" in refused.stderr) == (2, True)


def test_a_token_may_run_out() -> None:
    before = int(time.time())
    found = whose(made("-sk", SECRET, "-s", "alice", "-e", "2d"), "-sk", SECRET)
    assert found["exp"] in range(before + 2 * 86_400, before + 2 * 86_400 + 60)
    refused = tokens("create", "-sk", SECRET, "-s", "a", "-e", "soon")
    assert (refused.exit_code, "'soon' is no time" in refused.stderr) == (2, True)


def test_a_token_is_shown_without_a_key(tmp_path: Path) -> None:
    token = made("-sk", SECRET, "-s", "alice")
    path = tmp_path / "token"
    path.write_text(f"{token}\n")
    for done in (
        tokens("show", token),
        tokens("show", "--stdin", pipe=f"{token}\n"),
        tokens("show", "--token-file", path),
        tokens("show", TOKEN=token),
    ):
        assert done.stdout == '{"alg": "HS256", "typ": "JWT"}\n---\n{"sub": "alice"}\n'
    for text in ("token", "a.b.c", ""):
        assert tokens("show", text).exit_code == 1
    assert tokens("show").exit_code == 2


def test_a_token_that_is_not_good_is_told_of() -> None:
    other = base64.b64encode(bytes(32)).decode()
    refused = tokens("validate", "-sk", SECRET, made("-sk", other, "-s", "a"))
    assert refused.exit_code == 1
    assert "The token is signed with another key." in refused.stderr
    assert "-----" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["create", "-s", "a"], "Name one key: --secret-key or --private-key."),
        (["create", "-s", "a", "-sk", SECRET, "-pk", "x"], "Name one key"),
        (["create", "-s", " ", "-sk", SECRET], "--subject is empty"),
        (["create", "-s", "a", "-sk", SECRET, "-a", "HS512"], "The key is not for HS512"),
        (["create", "-s", "a", "-sk", "c2hvcnQ="], "has 5 bytes and needs 32"),
        (["create-secret-key", "-a", "RS256"], "There is no such algorithm RS256"),
        (["create-secret-key", "-o", "/missing/key"], "cannot be written (No such file"),
        (["validate", "x.y.z"], "Name one key: --secret-key or --public-key."),
        (["validate", "-f", "/missing/token", "-sk", SECRET], "/missing/token cannot be read"),
    ],
)
def test_a_wrong_argument_is_told_of(arguments: list[str], sentence: str) -> None:
    done = tokens(*arguments)
    assert done.exit_code == 2
    assert sentence in done.stderr
