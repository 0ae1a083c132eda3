"""JSONPaths: RFC 9535's, for each record as long as a moment takes.

What begins without `$` is a condition on the value: `@.status == 'open'`. The only file that knows
the library; loaded with the first path that somebody looks for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import re2
from jsonpath import JSONPath, JSONPathEnvironment, JSONPathMatch
from jsonpath.exceptions import JSONPathError
from jsonpath.filter import BaseExpression, FilterQuery
from jsonpath.function_extensions import ExpressionType, FilterFunction
from jsonpath.selectors import Filter as FilterSelector

from gateway.console.records.filters import BadPath, TooLong

_LONGEST: Final = 2_000
_WITHIN_S: Final = 0.2
"""For one record. A path that looks everywhere in everything never ends with a large one."""
_UNTIL: Final = "penstock.until"


class _Match(JSONPathMatch):
    """Made for everything that a path comes by."""

    def __init__(self, **what: Any) -> None:
        super().__init__(**what)
        if time.perf_counter() > self._filter_context[_UNTIL]:
            raise TooLong


class _Matches(FilterFunction):
    """`match` or `search`, by RE2: the library's regular expressions may take forever."""

    arg_types = [ExpressionType.VALUE, ExpressionType.VALUE]  # noqa: RUF012 the library's types
    return_type = ExpressionType.LOGICAL

    def __init__(self, *, whole: bool) -> None:
        self._whole = whole

    def __call__(self, value: object, pattern: object) -> bool:
        if not isinstance(value, str) or not isinstance(pattern, str):
            return False
        compiled = _compiled(pattern)
        if compiled is None:
            return False
        found = compiled.fullmatch(value) if self._whole else compiled.search(value)
        return found is not None


@lru_cache(maxsize=100)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error:
        return None  # RFC 9535, 2.4.6


class _Bounded(JSONPath):
    """A path whose matches are those above, of which the library makes its own."""

    __slots__ = ()

    def finditer(self, data: Any, *, filter_context: Any = None) -> Iterable[JSONPathMatch]:
        matches: Iterable[JSONPathMatch] = [
            _Match(
                filter_context=filter_context, obj=data, parent=None, path="$", parts=(), root=data
            )
        ]
        for segment in self.segments:
            matches = segment.resolve(matches)
        return matches


def _bounded(path: JSONPath) -> _Bounded:
    """The path, and all paths in its filters."""
    for segment in path.segments:
        for selector in segment.selectors:
            if isinstance(selector, FilterSelector):
                _bound(selector.expression)
    return _Bounded(env=path.env, segments=path.segments)


def _bound(expression: BaseExpression) -> None:
    if isinstance(expression, FilterQuery):
        expression.path = _bounded(expression.path)
    else:
        for each in expression.children():
            _bound(each)


class _Environment(JSONPathEnvironment):
    def setup_function_extensions(self) -> None:
        super().setup_function_extensions()
        self.function_extensions["match"] = _Matches(whole=True)
        self.function_extensions["search"] = _Matches(whole=False)


_ENVIRONMENT: Final = _Environment(strict=True)


class Path:
    """A JSONPath. Raises BadPath."""

    def __init__(self, text: str) -> None:
        self._is_condition = not text.startswith("$")
        if len(text) > _LONGEST:
            raise BadPath(f"The JSONPath has more than {_LONGEST} characters")
        try:
            path = _ENVIRONMENT.compile(f"$[?{text}]" if self._is_condition else text)
            assert isinstance(path, JSONPath), "RFC 9535 has no unions"
            self._path = _bounded(path)
        except (JSONPathError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise BadPath(f"This is no JSONPath: {reason}") from None

    def matches(self, value: Any) -> bool:
        """Whether it finds anything there. Raises TooLong."""
        data = [value] if self._is_condition else value
        until = {_UNTIL: time.perf_counter() + _WITHIN_S}
        try:
            return next(iter(self._path.finditer(data, filter_context=until)), None) is not None
        except (JSONPathError, RecursionError):
            return False  # nested too deep
