"""What the tests of the gateway's rooms share."""

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    command += " -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    made = subprocess.run(
        [*command.split(), "-keyout", str(path), "-out", str(path) + ".crt"],
        capture_output=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr.decode()
    path.write_text(path.read_text() + Path(str(path) + ".crt").read_text())
    return path
