"""A topic's settings: what is in effect and where it comes from, changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from core.config.rules import (
    AlterOperation,
    ConfigAlteration,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
)
from core.config.types import ConfigType
from core.config.values import ConfigEntry, ConfigSource
from core.errors import Refusal
from core.security.page_operations import CHANGE_SETTINGS, SEE_SETTINGS
from core.topic.topic import Topic
from gateway.console.api import Done, Page, action, page
from gateway.console.rendering import link
from gateway.console.topics import find_topic, head_of, why
from gateway.console.visit import Visit
from gateway.web.api import Refused

_OF_NAMESPACE: Final = "its namespace's policies"
_SOURCES: Final = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "this topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "broker {broker_id}, set while it runs",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers, set while they run",
    ConfigSource.STATIC_BROKER_CONFIG: "broker {broker_id}, set when it was started",
    ConfigSource.DEFAULT_CONFIG: "default",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """value: in effect; None where it must not be shown, or there is none. source: in words.
    is_own: whether the topic itself has it, so that it can be reset."""

    name: str
    value: str | None
    source: str
    is_own: bool
    is_flag: bool
    is_sensitive: bool
    is_changeable: bool
    documentation: str


@page("/topic/settings")
async def settings(visit: Visit) -> Page | Refused:
    """Every setting. `edit`: of this one, a field to change it."""
    topic = await find_topic(visit)
    edited = visit.text("edit") or None
    if edited is not None:
        visit.require_change(CHANGE_SETTINGS, topic.name)
    return await _page(visit, topic, edited)


async def _page(
    visit: Visit,
    topic: Topic,
    edited: str | None,
    filled: str | None = None,
    refused: str | None = None,
) -> Page | Refused:
    visit.require(SEE_SETTINGS, topic.name)
    (described,) = await visit.runtime.configs.describe([_resource(topic)])
    if isinstance(described, Refusal):
        return Refused(404, why(described))
    of_namespace = visit.runtime.namespaces.topic_settings(topic.name)
    may_change = visit.offers(CHANGE_SETTINGS, topic.name)
    values = {
        "head": head_of(visit, topic),
        "topic": topic,
        "settings": [
            setting_of(each, of_namespace, visit.runtime.cluster.broker_id, may_change)
            for each in described
        ],
        "edited": edited,
        "filled": filled,
        "refused": refused,
        "to_edit": lambda name: link("/topic/settings", name=topic.name, edit=name),
    }
    return Page("topic_settings.html", values, 200 if refused is None else 400)


def setting_of(
    entry: ConfigEntry, of_namespace: Mapping[str, str], broker_id: int, may_change: bool
) -> Setting:
    """A setting as it is shown. of_namespace: those that the topic's namespace makes for it, which
    override the broker's."""
    is_own = entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    value, source = entry.value, _SOURCES[entry.source].format(broker_id=broker_id)
    if entry.name in of_namespace and not is_own:
        value, source = of_namespace[entry.name], _OF_NAMESPACE
    return Setting(
        entry.name,
        None if entry.is_sensitive else value,
        source,
        is_own,
        entry.type is ConfigType.BOOLEAN,
        entry.is_sensitive,
        may_change and not entry.is_read_only,
        entry.documentation,
    )


@action("/topic/settings")
async def change_setting(visit: Visit) -> Page | Refused | Done:
    """Sets one, or (`reset`) has it be as for all topics again: as IncrementalAlterConfigs does."""
    topic = await find_topic(visit)
    visit.require(CHANGE_SETTINGS, topic.name)
    form = await visit.form()
    name, value = form.text("setting"), form.text("value")
    if "reset" in form:
        step = ConfigOperation(name, AlterOperation.DELETE.value, None)
        said = f"{name} is as for all topics again"
    else:
        step = ConfigOperation(name, AlterOperation.SET.value, value)
        said = f"{name} is {value} now"
    (refusal,) = await visit.runtime.configs.alter(
        [ConfigAlteration(_resource(topic), (step,))], validate_only=False
    )
    if refusal is not None:
        return await _page(visit, topic, name, value, why(refusal))
    return Done(link("/topic/settings", name=topic.name), said)


def _resource(topic: Topic) -> ConfigResource:
    return ConfigResource(ConfigResourceType.TOPIC.value, topic.name)
