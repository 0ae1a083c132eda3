"""Log lines, for people on a terminal or as JSON for machines. Only this file sets their format.

Must not show local variables: they hold database passwords and clients' records. A traceback names
files and lines only.
"""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer


def configure(log_format: str, level: str) -> None:
    """Sets the process's logging. log_format: console or json; level: debug to error."""
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        tracebacks = ExceptionDictTransformer(show_locals=False)
        processors += [
            structlog.processors.ExceptionRenderer(tracebacks),
            structlog.processors.JSONRenderer(),
        ]
    else:
        # The default formatter is rich's, which shows locals.
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        )
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
