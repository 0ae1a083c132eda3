"""What docs/sql.md and the README show does what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.storage.sql_doors.conftest import Doors

ROOT = Path(__file__).parents[3]
SHOWN = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["docs/sql.md", "README.md"])
def test_examples_run(doors18: Doors, page: str) -> None:
    doors18.make_topic("purchases")
    doors18.rows("CREATE TABLE public.purchase (id int PRIMARY KEY, customer text, total int)")
    examples = [each for each in SHOWN.findall((ROOT / page).read_text()) if "penstock." in each]
    assert examples
    role = doors18.make_role("penstock_producer")
    doors18.rows(f"GRANT ALL ON SCHEMA public TO {role}")
    doors18.rows(f"ALTER TABLE public.purchase OWNER TO {role}")
    session = doors18.session(role, autocommit=True)
    for example in examples:
        session.execute(example.encode())
    session.execute("INSERT INTO purchase VALUES (18, 'bo', 43)")
    *_, (topic, _, key, value) = doors18.records()
    assert (topic, key) == ("purchases", "18")
    assert json.loads(value or "") == {"id": 18, "customer": "bo", "total": 43}
