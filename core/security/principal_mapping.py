"""Whom a certificate's name stands for: `ssl.principal.mapping.rules`, as SslPrincipalMapper does.

Rules are DEFAULT, the name as it is, or RULE:pattern/replacement/ with L or U behind for lower or
upper case; the first whose pattern fits the whole name decides. Patterns are Python's regular
expressions; of Java's, replacements have $1 and \\$. Knows no certificate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from core.config.types import ConfigError

PROPERTY: Final = "ssl.principal.mapping.rules"
_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)"
_RULES: Final = re.compile(rf"\s*(?:{_RULE})\s*(?:,\s*|$)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Rule:
    """pattern: None for DEFAULT. case: "L", "U" or neither."""

    pattern: re.Pattern[str] | None = None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """None where it does not fit."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        found = self.pattern.sub(self._expand, name)
        return {"L": found.lower(), "U": found.upper()}.get(self.case, found)

    def _expand(self, match: re.Match[str]) -> str:
        """As Matcher.appendReplacement; a group that is not there stays as it is written
        (SslPrincipalMapper.escapeLiteralBackReferences)."""

        def meant(said: re.Match[str]) -> str:
            if said[1] is not None:
                return said[1]
            number = int(said[2])
            return said[0] if number > match.re.groups else match[number] or ""

        return _REFERENCE.sub(meant, self.replacement)


@dataclass(frozen=True, slots=True)
class PrincipalMapping:
    """The rules of a listener, in order."""

    rules: tuple[_Rule, ...]

    def user_of(self, name: str) -> str | None:
        """The user's name for a distinguished name; None where no rule fits: then nobody may come
        in by this certificate."""
        found = (rule.apply(name) for rule in self.rules)
        return next((user for user in found if user is not None), None)


def read_mapping(text: str) -> PrincipalMapping:
    """Reads the property's text. Raises ConfigError."""
    rules = []
    at, text = 0, text.strip()
    while at < len(text):
        found = _RULES.match(text, at)
        if found is None:
            raise ConfigError(
                f"{PROPERTY}: '{text[at:]}' is not DEFAULT or RULE:pattern/replacement/ with L or U"
            )
        at = found.end()
        default, pattern, replacement, case = found.groups()
        if default:
            rules.append(_Rule())
            continue
        try:
            rules.append(_Rule(re.compile(pattern), replacement, case))
        except re.error as error:
            raise ConfigError(
                f"{PROPERTY}: '{pattern}' is no regular expression: {error}"
            ) from None
    if not rules:
        raise ConfigError(f"{PROPERTY}: there is no rule; write DEFAULT for names as they are")
    return PrincipalMapping(tuple(rules))
