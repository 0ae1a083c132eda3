"""Who may see or alter the settings of which resource: ConfigHelper and ConfigAdminManager.

Does not know the settings.
"""

from core.config.rules import ConfigResource, ConfigResourceType
from core.errors import Error, Refusal
from core.security.operations import Requirement
from gateway.kafka.context import RequestContext

_WORDS = {
    Error.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    Error.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    Error.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
}


def config_refusal(
    row: tuple[Requirement, ...], resource: ConfigResource, ctx: RequestContext
) -> Refusal | None:
    """Why the client may not; None if it may, or if there is no such type: others say so.

    row: the API's, for brokers and all that is the cluster's, for topics, and for groups.
    """
    of_cluster, of_topic, of_group = row
    match ConfigResourceType.of(resource.type_number):
        case ConfigResourceType.UNKNOWN:
            return None
        case ConfigResourceType.TOPIC:
            requirement = of_topic
        case ConfigResourceType.GROUP:
            requirement = of_group
        case _:
            requirement = of_cluster
    if ctx.may(requirement, "" if requirement is of_cluster else resource.name):
        return None
    assert requirement.error is not None, "something is said"
    return Refusal(requirement.error, _WORDS[requirement.error])
