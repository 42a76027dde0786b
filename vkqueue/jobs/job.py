"""The life of a job, as a table. Jobs are rows and keep no state of their own, so nothing of the daemon runs by it: it
is what the simulation in tests/jobs/test_random_steps.py holds every row to.

    queued ─→ submitted ─→ done
      ↑ ↓
     held        (waits for a pipeline, for `after`, or behind a held job with a common buffer)
"""

from __future__ import annotations

from enum import Enum


class State(Enum):
    """Where a job is."""

    QUEUED = "queued"
    HELD = "held"
    SUBMITTED = "submitted"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    TIMEOUT = "timeout"
    LOST = "lost"
    SHUT_DOWN = "shut_down"


class Event(Enum):
    """What happens to it."""

    HOLD = "hold"
    RELEASE = "release"
    SUBMIT = "submit"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"
    EXPIRE = "expire"
    TIME_OUT = "time_out"
    LOSE = "lose"
    SHUT_DOWN = "shut_down"


_WAITING = {
    Event.FAIL: State.FAILED,
    Event.CANCEL: State.CANCELLED,
    Event.EXPIRE: State.EXPIRED,
    Event.LOSE: State.LOST,
    Event.SHUT_DOWN: State.SHUT_DOWN,
}

TRANSITIONS: dict[State, dict[Event, State]] = {
    State.QUEUED: {Event.HOLD: State.HELD, Event.SUBMIT: State.SUBMITTED, **_WAITING},
    State.HELD: {Event.RELEASE: State.QUEUED, **_WAITING},
    State.SUBMITTED: {
        Event.FINISH: State.DONE,
        Event.FAIL: State.FAILED,
        Event.TIME_OUT: State.TIMEOUT,
        Event.LOSE: State.LOST,
    },
}

TERMINAL = frozenset(set(State) - set(TRANSITIONS))
"""Each has exactly one answer; nothing happens to a job after it."""


def advance(state: State, event: Event) -> State:
    """The next state.

    Raises:
        ValueError: nothing of the kind can happen there.
    """
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise ValueError(f"a job that is {state.value} cannot {event.value}") from None
