"""The registry: what may be entered, and what ApiVersions lists."""

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from core.errors import Error
from core.ports.log import CommitUnknown, StoreUnavailable
from core.security.operations import REQUIREMENTS
from docs import generate
from gateway.kafka import codec, handlers
from gateway.kafka.api import REGISTRY, Api, Handler, Registry, load_handlers
from gateway.kafka.codec import ApiVersionsRequest
from gateway.kafka.context import ClientSoftware, RequestContext, Services
from gateway.kafka.errors import kafka_code
from gateway.kafka.handlers.api_versions import api_versions


async def handler(request: Any, ctx: RequestContext) -> None:
    """Enters the registry and is never called."""


def context(version: int = 0) -> RequestContext:
    return RequestContext(cast(Services, None), cast(Api, None), version, "client", "127.0.0.1:1")


def test_advertised_versions_may_be_wider_than_served_ones() -> None:
    registry = Registry()
    registry.api(0, versions=range(3, 14), advertised=range(14))(handler)
    registry.api(3, versions=range(14))(handler)
    produce, metadata = registry.table()
    assert (produce.name, produce.versions, produce.advertised) == (
        "Produce",
        range(3, 14),
        range(14),
    )
    assert metadata.advertised == metadata.versions
    assert registry.find(3) is metadata
    assert registry.find(1) is None


@pytest.mark.parametrize("versions", [range(99), range(-1, 3), range(3, 3)])
def test_versions_the_codec_lacks_are_refused(versions: range) -> None:
    with pytest.raises(ValueError, match="Metadata"):
        Registry().api(3, versions=versions)


def test_a_key_is_entered_once() -> None:
    registry = Registry()
    registry.api(3, versions=range(3))(handler)
    with pytest.raises(ValueError, match="two handlers"):
        registry.api(3, versions=range(3))


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValueError, match="12345"):
        Registry().api(12_345, versions=range(3))


ONE_FILE = '''"""DescribeAcls (key 29): finds none.

Versions: v2 flexible.
"""

from core.errors import Error
from gateway.kafka.api import api
from gateway.kafka.codec import DescribeAclsRequest, DescribeAclsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code


@api(29, versions=range(4), known_since={Error.TRANSACTION_ABORTABLE: 3}, is_long_poll=True)
async def describe_acls(request: DescribeAclsRequest, ctx: RequestContext) -> DescribeAclsResponse:
    error = ctx.known(Error.TRANSACTION_ABORTABLE)
    message = request.resource_name_filter
    return DescribeAclsResponse(error_code=kafka_code(error), error_message=message, resources=[])
'''


async def test_a_new_api_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The codec knows its messages, the registry and the documentation find it."""
    registry = Registry()
    monkeypatch.setattr("gateway.kafka.api.REGISTRY", registry)
    monkeypatch.setattr("gateway.kafka.api.api", registry.api)
    monkeypatch.setattr(handlers, "__path__", [str(tmp_path)])
    assert 29 in generate.missing()
    name = f"{handlers.__name__}.one_file"
    (tmp_path / "one_file.py").write_text(ONE_FILE)
    try:
        [served] = load_handlers().table()
        assert 29 not in generate.missing()
        assert generate.summary(served) == "finds none."
    finally:
        sys.modules.pop(name, None)
        vars(handlers).pop("one_file", None)
    assert (served.name, served.is_long_poll, served.v2_since) == ("DescribeAcls", True, None)
    request = codec.request_class(29)(resource_name_filter="orders")
    for version, code in ((1, Error.INVALID_TXN_STATE), (3, Error.TRANSACTION_ABORTABLE)):
        sent = b"".join(codec.encode_message(request, version))
        received = codec.decode_message(type(request), version, memoryview(sent))
        ctx = RequestContext(cast(Services, None), served, version, "client", "127.0.0.1:1")
        answer = await served.handler(received, ctx)
        [encoded] = codec.encode_response(answer, version, 7)
        assert b"orders" in bytes(encoded)
        assert answer.error_code == kafka_code(code)


def test_an_api_of_which_nobody_has_said_what_it_asks_for_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {name: row for name, row in REQUIREMENTS.items() if name != "Produce"}
    monkeypatch.setattr("gateway.kafka.api.REQUIREMENTS", rows)
    with pytest.raises(ValueError, match="Produce"):
        load_handlers()


def test_every_handler_module_enters_its_api() -> None:
    registry = load_handlers()
    assert registry is REGISTRY
    assert registry.find(codec.API_VERSIONS_KEY) is not None
    for served in registry.table():
        # Penstock's own APIs, which no list of Kafka's has, are not advertised.
        is_our_own = served.key >= codec.FIRST_KEY_OF_PENSTOCK
        assert set(served.versions) <= set(served.advertised) or is_our_own
        assert bool(served.advertised) != is_our_own


@pytest.mark.parametrize("version", range(5))
async def test_api_versions_lists_the_registry(version: int) -> None:
    request = ApiVersionsRequest(client_software_name="me", client_software_version="1")
    response = await api_versions(request, context(version))
    body = b"".join(codec.encode_message(response, version))
    decoded = codec.decode_message(codec.ApiVersionsResponse, version, memoryview(body))
    listed = {entry.api_key: (entry.min_version, entry.max_version) for entry in decoded.api_keys}
    assert decoded.error_code == 0
    advertised = {a.key: a.advertised for a in REGISTRY.table() if a.advertised}
    assert listed == {key: (each[0], each[-1]) for key, each in advertised.items()}
    assert max(listed) < codec.FIRST_KEY_OF_PENSTOCK
    assert listed[18] == (0, 4)


@pytest.mark.parametrize("name", ["", "-me", "me!", "me\0", "m e"])
async def test_malformed_software_name_is_an_invalid_request(name: str) -> None:
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    response = await api_versions(request, context(3))
    assert response.error_code == kafka_code(Error.INVALID_REQUEST)
    assert (await api_versions(request, context(2))).error_code == 0


def test_unknown_version_of_api_versions_names_only_its_own_range() -> None:
    served = REGISTRY.find(18)
    assert served is not None
    assert served.unsupported is not None
    response = served.unsupported()
    assert response.error_code == kafka_code(Error.UNSUPPORTED_VERSION)
    assert [(e.api_key, e.min_version, e.max_version) for e in response.api_keys] == [(18, 0, 4)]


@pytest.mark.parametrize("name", ["a", "apache-kafka-java", "kafka.python-3", "9"])
def test_software_names_kafka_accepts(name: str) -> None:
    assert ClientSoftware(name, "1.0-beta").is_valid


async def answer(request: Any, ctx: RequestContext) -> str:
    if isinstance(request, Exception):
        raise request
    return "done"


@pytest.fixture
def guarded() -> Handler:
    registry = Registry()
    registry.api(26, versions=range(1), unavailable=lambda request, ctx: f"try {request} again")(
        answer
    )
    api = registry.find(26)
    assert api is not None
    return api.handler


async def test_an_answer_of_the_handler_passes(guarded: Handler) -> None:
    assert await guarded(1, context()) == "done"


@pytest.mark.parametrize("failure", [StoreUnavailable("gone"), CommitUnknown("gone")])
async def test_a_lost_database_is_answered(guarded: Handler, failure: StoreUnavailable) -> None:
    assert await guarded(failure, context()) == "try gone again"


async def test_a_bug_is_not_hidden(guarded: Handler) -> None:
    with pytest.raises(ZeroDivisionError):
        await guarded(ZeroDivisionError(), context())
