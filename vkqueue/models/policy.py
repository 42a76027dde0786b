"""`dynamic_batching` of a model's configuration: names and meaning of Triton Inference Server's model configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vkqueue.errors import InvalidError, brief

_LARGEST = 1 << 63  # what fits in a time in nanoseconds or a count anywhere on the way; exclusive


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How requests of one priority level wait.

    Attributes:
        max_queue_size: requests that wait at most; 0: only the daemon's limits.
        default_timeout_microseconds: how long a request waits at most; 0: without an end.
        timeout_action: what becomes of one that waited longer: "REJECT" (it is answered so), or "DELAY" (it goes
            behind all of its level and above that have not).
        allow_timeout_override: whether a request may shorten the time (never lengthen it).
    """

    max_queue_size: int = 0
    default_timeout_microseconds: int = 0
    timeout_action: str = "REJECT"
    allow_timeout_override: bool = False


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """When requests leave together.

    Attributes:
        preferred_batch_size: rising sizes, in samples; a batch of one of them leaves at once. None given: the model's
            `max_batch_size`.
        max_queue_delay_microseconds: how long a request waits at most for others to fill its batch.
        preserve_ordering: requests leave the queue in the order in which they came, and are answered in that.
        priority_levels: levels are 1 (served first) to this; 0: there are none.
        default_priority_level: of requests that name none, or one that there is not.
        default_queue_policy: of levels without one of their own.
        priority_queue_policy: level → its own.
    """

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def level(self, priority: int) -> int:
        """The level of a request that asks for `priority`; 0 asks for nothing."""
        return priority if 0 < priority <= self.priority_levels else self.default_priority_level

    def queue_policy(self, level: int) -> QueuePolicy:
        """The one of a level."""
        return self.priority_queue_policy.get(level, self.default_queue_policy)

    def deadline_ns(self, priority: int, received_ns: int, timeout_us: int = 0) -> int:
        """When a request has waited too long; 0: never.

        Args:
            timeout_us: what the request asks for, 0 for nothing. Counts where its level allows it, and is shorter.
        """
        policy = self.queue_policy(self.level(priority))
        timeout = policy.default_timeout_microseconds
        if policy.allow_timeout_override and timeout_us and (not timeout or timeout_us < timeout):
            timeout = timeout_us
        return received_ns + timeout * 1000 if timeout else 0

    def to_map(self) -> dict[str, Any]:
        """As `batching_policy` takes it, nothing left out."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            "preferred_batch_size": list(self.preferred_batch_size),
            "preserve_ordering": self.preserve_ordering,
            "default_queue_policy": _queue_map(self.default_queue_policy),
            "priority_queue_policy": {
                str(level): _queue_map(policy) for level, policy in sorted(self.priority_queue_policy.items())
            },
        }


_NUMBERS = ("max_queue_delay_microseconds", "priority_levels", "default_priority_level")


def batching_policy(config: Mapping[str, Any], max_batch_size: int, where: str = "dynamic_batching") -> BatchingPolicy:
    """The policy that a configuration's map describes, defaults filled in.

    Args:
        max_batch_size: the model's.
        where: what the map is called in messages.

    Raises:
        InvalidError: with the key that is wrong, in full.
    """
    _known(config, BatchingPolicy, where)
    numbers = {name: _number(config.get(name, 0), f"{where}.{name}") for name in _NUMBERS}
    levels, default = numbers["priority_levels"], numbers["default_priority_level"]
    if levels and not 1 <= default <= levels:
        raise InvalidError(
            f"{where}.default_priority_level is {default}; expected one of the levels, 1 to {levels} (priority_levels)"
        )
    if default and not levels:
        raise InvalidError(f"{where}.default_priority_level is {default}, but priority_levels is 0: there are none")
    return BatchingPolicy(
        _sizes(config.get("preferred_batch_size", ()), max_batch_size, f"{where}.preferred_batch_size"),
        preserve_ordering=_flag(config.get("preserve_ordering", False), f"{where}.preserve_ordering"),
        default_queue_policy=_queue(config.get("default_queue_policy", {}), f"{where}.default_queue_policy"),
        priority_queue_policy=_queues(
            config.get("priority_queue_policy", {}), levels, f"{where}.priority_queue_policy"
        ),
        **numbers,
    )


def _sizes(value: object, max_batch_size: int, where: str) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidError(f"{where} is {brief(value)}; expected a list of sizes")
    sizes = [_number(size, where) for size in value]
    wrong = next((size for size in sizes if not 1 <= size <= max_batch_size), None)
    if wrong is not None:
        raise InvalidError(f"{where} has {wrong}; expected sizes from 1 to max_batch_size, which is {max_batch_size}")
    return tuple(sorted(set(sizes)))


def _queues(value: object, levels: int, where: str) -> dict[int, QueuePolicy]:
    if not isinstance(value, Mapping):
        raise InvalidError(f"{where} is {brief(value)}; expected a table for each level")
    policies = {}
    for key, policy in value.items():
        # TOML has strings for keys, and so has what came from it.
        level = int(key) if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20 else key
        if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= levels:
            expected = f"a level from 1 to {levels}" if levels else "none, as priority_levels is 0"
            raise InvalidError(f"{where} has a table for {brief(key)}; expected {expected}")
        policies[level] = _queue(policy, f"{where}.{level}")
    return policies


def _queue(value: object, where: str) -> QueuePolicy:
    if not isinstance(value, Mapping):
        raise InvalidError(f"{where} is {brief(value)}; expected a table")
    _known(value, QueuePolicy, where)
    action = value.get("timeout_action", "REJECT")
    if action not in ("REJECT", "DELAY"):
        raise InvalidError(f'{where}.timeout_action is {brief(action)}; expected "REJECT" or "DELAY"')
    return QueuePolicy(
        _number(value.get("max_queue_size", 0), f"{where}.max_queue_size"),
        _number(value.get("default_timeout_microseconds", 0), f"{where}.default_timeout_microseconds"),
        action,
        _flag(value.get("allow_timeout_override", False), f"{where}.allow_timeout_override"),
    )


def _queue_map(policy: QueuePolicy) -> dict[str, Any]:
    return {field.name: getattr(policy, field.name) for field in fields(policy)}


def _known(value: object, shape: type[BatchingPolicy] | type[QueuePolicy], where: str) -> None:
    if not isinstance(value, Mapping):
        raise InvalidError(f"{where} is {brief(value)}; expected a table")
    names = [field.name for field in fields(shape)]
    unknown = next((key for key in value if key not in names), None)
    if unknown is not None:
        raise InvalidError(f"{where} has no key {brief(unknown)}; it has {', '.join(names)}")


def _number(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST // 1000:
        raise InvalidError(f"{where} is {brief(value)}; expected an integer from 0 to {_LARGEST // 1000 - 1}")
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidError(f"{where} is {brief(value)}; expected true or false")
    return value
