"""The audit's way to the database: what it says without one, and that it keeps passwords."""

from __future__ import annotations

from argparse import Namespace

import pytest

from penstock.spark.pipelines.audit import Question, job_of
from penstock.spark.pipelines.options import Broker, PipelineFailed, WrongArgument
from penstock.spark.pipelines.transactions import read_transactions
from tests.conftest import free_port

MARK = "cret"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:se%zz{MARK}@[::1]:1/d",
        f"postgresql://me:se/{MARK}@[::1]:1/d",
        f"postgresql://me:1/{MARK}@[::1]:1/d",
        f"postgresql://me:se@{MARK}@[::1]:1/d",
        f"postgresql://me:se?x@{MARK}@[::1]:1/d",
        f"postgresql://me:se {MARK}@[::1]:1/d",
        f"host=here password=se {MARK}",
    ],
)
def test_a_url_that_libpq_cannot_read_is_refused_without_any_part_of_it(url: str) -> None:
    with pytest.raises(PipelineFailed) as refusal:
        read_transactions(url, [], lambda done, total: None)
    assert MARK not in str(refusal.value)
    assert "--database-url cannot be read: in a user or password write" in str(refusal.value)
    # Before a broker is asked, and before Spark starts.
    with pytest.raises(WrongArgument):
        job_of(Namespace(bootstrap_server="nowhere:1", kafka=[], topics=["t"], database_url=url))


def test_a_database_that_does_not_answer_keeps_the_password() -> None:
    url = f"postgresql://me:{MARK}%2F%25@127.0.0.1:{free_port()}/d?connect_timeout=5"
    with pytest.raises(PipelineFailed, match="does not tell of transactions") as failure:
        read_transactions(url, [], lambda done, total: None)
    assert MARK not in str(failure.value)


def test_what_is_asked_for_is_shown_without_the_url() -> None:
    asked = Question(Broker("here:1"), ("t",), "audit.html", f"postgresql://me:{MARK}@h/d")
    assert MARK not in repr(asked)
