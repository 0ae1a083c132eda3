"""Which live broker leads a partition: rendezvous hashing, a hint that keeps caches warm.

Every broker must compute the same from the same inputs, whatever its process, platform or version.
So it uses fixed arithmetic, never `hash()`. Correctness does not depend on it; knows no heartbeat.
"""

from collections.abc import Iterable

_MASK = 0xFFFF_FFFF_FFFF_FFFF


def _mix(value: int) -> int:
    """The 64-bit finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable PRNGs, 2014)."""
    value = (value + 0x9E37_79B9_7F4A_7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB) & _MASK
    return value ^ (value >> 31)


def choose_leader(partition_id: int, broker_ids: Iterable[int]) -> int | None:
    """The broker with the greatest score for this partition; None if there is no broker.

    A broker that leaves moves only what it led; one that joins takes an even share from each.
    """
    key = _mix(partition_id)
    best: tuple[int, int] | None = None
    for broker_id in broker_ids:
        # The score decides; of equal scores (one in 2⁶⁴) every broker takes the greater id.
        candidate = (_mix(key ^ _mix(broker_id)), broker_id)
        if best is None or candidate > best:
            best = candidate
    return best[1] if best else None
