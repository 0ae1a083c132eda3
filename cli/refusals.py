"""What keeps a broker from serving, in words for people: exit code 2, no traceback.

Knows the exceptions of the server's rooms; not who is told.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import NoReturn

import typer
from rich.console import Console


def refuse(sentence: str) -> NoReturn:
    """A wrong setting or an unreachable database: the sentence, exit code 2, no traceback."""
    Console(stderr=True).print(
        f"penstock: {sentence}", style="red", markup=False, highlight=False, soft_wrap=True
    )
    raise typer.Exit(2)


@contextlib.contextmanager
def refusals(say: Callable[[str], NoReturn] = refuse) -> Iterator[None]:
    """While a server is started and serves: `say` is called with the sentence, and ends the
    command. What has broken it later ends it with exit code 1; its log says more."""
    from core.ports.log import StoreUnavailable
    from core.ports.topics import BrokerIdTaken
    from gateway.config import SettingsError
    from storage.server.embedded import EmbeddedPostgresError

    try:
        yield
    except (SettingsError, EmbeddedPostgresError, BrokerIdTaken) as error:
        say(str(error))
    except StoreUnavailable as error:
        say(unreachable(str(error)))
    except Exception as error:
        # What takes a while to load is loaded by now, if it has raised this.
        from gateway.app import BrokerFailed
        from storage.migrate import SchemaRefused

        if isinstance(error, SchemaRefused):
            say(str(error))
        if isinstance(error, BrokerFailed):
            raise typer.Exit(1) from None
        raise


def unreachable(reason: str) -> str:
    """The sentence about a database that gave this reason."""
    first = reason.splitlines()[0] if reason else "no answer"
    return f"The database cannot be used ({first}): check --database-url and that it is running."
