"""`dynamic_batching`: what it may say, and what levels and deadlines come of it."""

from __future__ import annotations

from typing import Any

import pytest

from vkqueue.errors import InvalidError
from vkqueue.models.policy import BatchingPolicy, QueuePolicy, batching_policy

FULL = {
    "preferred_batch_size": [8, 4, 8],
    "max_queue_delay_microseconds": 500,
    "preserve_ordering": True,
    "priority_levels": 3,
    "default_priority_level": 2,
    "default_queue_policy": {"max_queue_size": 10},
    "priority_queue_policy": {
        "1": {"default_timeout_microseconds": 100, "timeout_action": "DELAY", "allow_timeout_override": True}
    },
}


def test_defaults_are_tritons() -> None:
    assert batching_policy({}, 8) == BatchingPolicy((), 0, False, 0, 0, QueuePolicy(0, 0, "REJECT", False), {})


def test_all_keys() -> None:
    assert batching_policy(FULL, 8) == BatchingPolicy(
        (4, 8), 500, True, 3, 2, QueuePolicy(max_queue_size=10), {1: QueuePolicy(0, 100, "DELAY", True)}
    )


@pytest.mark.parametrize("config", [{}, FULL], ids=["empty", "full"])
def test_a_policy_as_a_map_is_the_policy(config: dict[str, Any]) -> None:
    policy = batching_policy(config, 8)
    assert batching_policy(policy.to_map(), 8) == policy


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_delay": 1}, "has no key 'max_delay'; it has preferred_batch_size, max_queue_delay_microseconds"),
        ({"preferred_batch_size": 8}, "preferred_batch_size is 8; expected a list"),
        (
            {"preferred_batch_size": [9]},
            "preferred_batch_size has 9; expected sizes from 1 to max_batch_size, which is 8",
        ),
        ({"preferred_batch_size": [0]}, "has 0"),
        ({"preferred_batch_size": [True]}, "is True; expected an integer"),
        ({"max_queue_delay_microseconds": -1}, "max_queue_delay_microseconds is -1; expected an integer from 0"),
        ({"max_queue_delay_microseconds": 2**62}, "expected an integer from 0"),
        ({"preserve_ordering": 1}, "preserve_ordering is 1; expected true or false"),
        ({"priority_levels": 2}, "default_priority_level is 0; expected one of the levels, 1 to 2"),
        ({"priority_levels": 2, "default_priority_level": 3}, "is 3; expected one of the levels"),
        ({"default_priority_level": 1}, "priority_levels is 0: there are none"),
        ({"default_queue_policy": 1}, "default_queue_policy is 1; expected a table"),
        ({"default_queue_policy": {"size": 1}}, "default_queue_policy has no key 'size'; it has max_queue_size"),
        ({"default_queue_policy": {"timeout_action": "DROP"}}, 'is \'DROP\'; expected "REJECT" or "DELAY"'),
        ({"default_queue_policy": {"allow_timeout_override": 0}}, "expected true or false"),
        ({"priority_queue_policy": []}, "priority_queue_policy is \\[\\]; expected a table for each level"),
        ({"priority_queue_policy": {"1": {}}}, "has a table for '1'; expected none, as priority_levels is 0"),
        ({**FULL, "priority_queue_policy": {"4": {}}}, "a table for '4'; expected a level from 1 to 3"),
        ({**FULL, "priority_queue_policy": {"one": {}}}, "a table for 'one'"),
        ({**FULL, "priority_queue_policy": {2: {"max_queue_size": "x"}}}, "priority_queue_policy.2.max_queue_size is"),
    ],
)
def test_what_is_wrong_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        batching_policy(config, 8)


@pytest.mark.parametrize(("priority", "level"), [(0, 2), (1, 1), (3, 3), (4, 2), (-1, 2)])
def test_a_priority_that_there_is_not_is_the_default(priority: int, level: int) -> None:
    assert batching_policy(FULL, 8).level(priority) == level


@pytest.mark.parametrize("priority", [0, 1, 5])
def test_without_levels_all_are_equal(priority: int) -> None:
    assert BatchingPolicy().level(priority) == 0


@pytest.mark.parametrize(
    ("default", "override", "asked", "expected"),
    [
        pytest.param(0, False, 0, 0, id="none"),
        pytest.param(100, False, 0, 100, id="the default"),
        pytest.param(100, False, 50, 100, id="not to be overridden"),
        pytest.param(100, True, 50, 50, id="shortened"),
        pytest.param(100, True, 500, 100, id="never lengthened"),
        pytest.param(0, True, 500, 500, id="given where there is none"),
        pytest.param(0, False, 500, 0, id="not given where there is none"),
    ],
)
def test_deadlines(default: int, override: bool, asked: int, expected: int) -> None:
    queue = QueuePolicy(default_timeout_microseconds=default, allow_timeout_override=override)
    policy = BatchingPolicy(default_queue_policy=queue)
    assert policy.deadline_ns(0, 7000, asked) == (7000 + expected * 1000 if expected else 0)
