"""Who asks. Does not know how it was proved, nor what it may do."""

from dataclasses import dataclass, field
from typing import Final

USER: Final = "User"
"""The kind of whoever logs in (KafkaPrincipal.USER_TYPE)."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Kafka's KafkaPrincipal. kind: "User"; other front-ends may have other kinds.

    is_by_token: whether it has come by a delegation token; it is the same principal all the same.
    """

    name: str
    kind: str = USER
    is_by_token: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("ANONYMOUS")
"""Whoever comes by a listener that asks nobody (KafkaPrincipal.ANONYMOUS)."""
