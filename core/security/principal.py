"""Who asks. Does not know how it was proved, nor what it may do."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """Kafka's KafkaPrincipal. kind: "User"; other front-ends may have other kinds."""

    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("ANONYMOUS")
"""Whoever comes by a listener that asks nobody (KafkaPrincipal.ANONYMOUS)."""
