"""The version of the distribution, read by pyproject.toml, `penstock --version` and the metrics."""

VERSION = "0.1.0"
