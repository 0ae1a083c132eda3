"""Log lines, for people on a terminal or as JSON for machines. Only this file sets their format.

Must not show local variables: they hold database passwords and clients' records. A traceback names
files and lines only.
"""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer


class _Libraries(logging.Handler):
    """Lines of libraries that use `logging` (uvicorn, asyncio), as lines of our own."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger(record.name)
        tell = log.error if record.levelno >= logging.ERROR else log.warning
        exception = record.exc_info if record.exc_info and record.exc_info[0] else None
        tell(record.getMessage(), library=record.name, exc_info=exception)


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
    root = logging.getLogger()
    if not any(isinstance(each, _Libraries) for each in root.handlers):
        root.addHandler(_Libraries(logging.WARNING))
