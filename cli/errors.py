"""What kafka-python's errors mean, each as one sentence that a person understands.

Knows kafka-python's errors; no terminal and nothing of the server. Any Kafka may have answered.
"""

import difflib
import re
from collections.abc import Iterable

# What a broker answers while it cannot work: Penstock's database is away, or a Kafka has no leader.
_UNABLE = {
    *("LEADER_NOT_AVAILABLE", "REQUEST_TIMED_OUT", "BROKER_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR"),
    *("COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", "NOT_CONTROLLER"),
    *("NETWORK_EXCEPTION", "NOT_COORDINATOR", "NOT_LEADER_FOR_PARTITION"),
    *("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
}
_TRY_AGAIN = "try again, or see the broker's log"
_ADDED_BY_THE_CLIENT = re.compile(r"\w*(?:Request|Response)\b.*(?:failed|response|\()", re.DOTALL)


def sentence(code: int, message: str | None = None) -> str:
    """Kafka's name of an error with the broker's words, else Kafka's own."""
    from kafka.errors import for_code

    error = for_code(code)
    name = getattr(error, "message", None) or error.__name__
    words = message or getattr(error, "description", "")
    return f"{name}: {words}" if words else str(name)


def raise_if_unable(code: int) -> None:
    """What a broker says of one topic, and means of itself."""
    from kafka.errors import for_code

    error = for_code(code)
    if getattr(error, "message", None) in _UNABLE:
        raise error


def sentence_of(bootstrap: str, error: Exception) -> str:
    """Why a question to the broker had no answer, and what to do."""
    from kafka import errors

    name = getattr(error, "message", None)
    match error:
        case errors.NodeNotReadyError() | errors.MetadataEmptyBrokerList() | RuntimeError():
            return unable(bootstrap, "it knows no controller")
        case errors.RequestTimedOutError() | errors.KafkaTimeoutError():
            return (
                f"The broker at {bootstrap} did not answer in time: it is busy, or its database "
                f"is away; {_TRY_AGAIN}."
            )
        case errors.BrokerResponseError() if name in _UNABLE:
            return unable(bootstrap, str(name))
        case errors.KafkaConnectionError() | errors.Cancelled():
            return (
                f"The broker at {bootstrap} closed the connection before it answered: it stops, "
                f"or its database is away; {_TRY_AGAIN}."
            )
        case errors.UnsupportedVersionError():
            return f"The broker at {bootstrap} is too old for this: {_words(error) or name}."
        case errors.BrokerResponseError():
            said = sentence(error.errno, _words(error)).rstrip(".")
            return f"The broker at {bootstrap} refused: {said}."
    return f"The broker at {bootstrap} could not be asked: {_words(error) or type(error).__name__}."


def unable(bootstrap: str, reason: str) -> str:
    """A broker that is there and cannot work, which is so for the moment."""
    return (
        f"The broker at {bootstrap} answers, but its database is away or it is just starting "
        f"({reason}); {_TRY_AGAIN}."
    )


def _words(error: Exception) -> str:
    """What the broker said; not the request and the response, which kafka-python puts there."""
    words = str(error.args[0]) if error.args else ""
    return "" if _ADDED_BY_THE_CLIENT.match(words) else words.rstrip(".")


def suggestion(name: str, known: Iterable[str]) -> str:
    """ " Did you mean …?", or nothing where no known name is near."""
    by_lower_case = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=2, cutoff=0.7)
    return f" Did you mean {' or '.join(by_lower_case[each] for each in near)}?" if near else ""
