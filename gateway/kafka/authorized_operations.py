"""The operations a client may do, as the bit fields of KIP-430. Without ACLs: all there are.

Does not know who asks.
"""

from typing import Final

# Bit n stands for the operation with Kafka's id n (`AclOperation`).
_CREATE, _DELETE, _ALTER, _DESCRIBE = 1 << 5, 1 << 6, 1 << 7, 1 << 8
_READ, _WRITE, _CLUSTER_ACTION, _IDEMPOTENT_WRITE = 1 << 3, 1 << 4, 1 << 9, 1 << 12
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = 1 << 10, 1 << 11

# `AclEntry.supportedOperations`, which Kafka without an authorizer answers.
_BOTH: Final = _CREATE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
TOPIC_OPERATIONS: Final = _BOTH | _READ | _WRITE | _DELETE
CLUSTER_OPERATIONS: Final = _BOTH | _CLUSTER_ACTION | _IDEMPOTENT_WRITE
GROUP_OPERATIONS: Final = _READ | _DESCRIBE | _DELETE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS

NOT_ASKED: Final = -(2**31)
"""What the field holds where the client did not ask."""
