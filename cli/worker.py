"""`penstock worker`: a process of `serve --workers`, started by its supervisor alone.

Knows how the two talk (`gateway.workers.orders`), and nothing of the others.
"""

import gc
import sys
from collections.abc import Mapping
from typing import NoReturn

import typer

from cli import supervised
from cli.refusals import refusals


def worker() -> None:
    """One broker of several. Its orders come by standard input; when that ends, it ends, too."""
    with supervised.OrderlyEnd() as end, refusals(_refuse):
        gc.disable()  # until the broker is up: what is loaded here stays
        # First what takes its time: the orders come when the supervisor wants it to serve.
        from gateway.app import run
        from gateway.workers.orders import Answer, Orders

        _say(Answer().line())
        line = sys.stdin.buffer.readline()
        if not line:
            return
        try:
            orders = Orders.read(line)
        except ValueError as error:
            _refuse(f"The settings are those of another version ({error}): start the command anew.")
        supervised.stop_with_stdin()

        def tell(ports: Mapping[str, int]) -> None:
            _say(Answer(ports=dict(ports)).line())
            end.if_asked()

        run(orders.settings, reader=orders.reader, on_ready=tell)


def _refuse(sentence: str) -> NoReturn:
    from gateway.workers.orders import Answer

    _say(Answer(refusal=sentence).line())
    raise typer.Exit(2)


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
