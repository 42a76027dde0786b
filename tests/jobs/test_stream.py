"""Which rows get a barrier, an initializer, a slot, or the host's own hand: case by case."""

from __future__ import annotations

import pytest
from support.jobs import MIXED, PUSH_MAX, PUSHED, RINGED, conflict, create, launch, layout, read, steps, token, write

from vkqueue.jobs import stream as stream_module
from vkqueue.jobs.scheduler import Scheduler
from vkqueue.jobs.stream import Stream
from vkqueue.model import BARRIER, COPY, DIRECT, FILL, INIT, Layout, Row, Token

A, B, C, D, X, Y = 1, 2, 3, 4, 5, 6


class Rig:
    """A stream, fed with tokens or rows."""

    def __init__(self, *, max_push: int = PUSH_MAX, direct: int = 0) -> None:
        self.stream = Stream(max_push, direct, direct)
        self.serial = 0

    def batch(self, *rows: Token | Row) -> list[str]:
        """Of each row: "|" for a barrier, "i" for the initializer, "d" for the host, then the slot."""
        self.serial += 1
        full = [launch(r) if isinstance(r, Token) else r for r in rows]
        made = self.stream.make_batch(full, self.serial, "idle", 7)
        assert (made.serial, made.rows, made.reason, made.closed_ns) == (self.serial, full, "idle", 7)
        return [
            "".join(mark for bit, mark in ((BARRIER, "|"), (INIT, "i"), (DIRECT, "d")) if flag & bit)
            + (str(slot) if slot >= 0 else "")
            for flag, slot in zip(made.flags, made.slots, strict=True)
        ]

    def barriers(self, *rows: Token | Row) -> str:
        """Of each row "|" or "."."""
        return "".join("|" if "|" in marks else "." for marks in self.batch(*rows))

    def done(self, *serials: int) -> None:
        for serial in serials:
            self.stream.completed(serial)


@pytest.fixture
def rig() -> Rig:
    return Rig()


# S12: a barrier where tokens conflict, and nowhere else


@pytest.mark.parametrize(
    ("first", "second", "barrier"),
    [
        pytest.param(token([A]), token([A]), False, id="read after read"),
        pytest.param(token([], [A]), token([A]), True, id="read after write"),
        pytest.param(token([A]), token([], [A]), True, id="write after read"),
        pytest.param(token([], [A]), token([], [A]), True, id="write after write"),
        pytest.param(token([A], [B]), token([C], [D]), False, id="other buffers"),
        pytest.param(token([A], [B]), token([A], [C]), False, id="common input"),
        pytest.param(token([], [(A, 0, 32)]), token([], [(A, 32, 64)]), False, id="halves"),
        pytest.param(token([], [(A, 0, 33)]), token([(A, 32, 64)]), True, id="one byte in common"),
        pytest.param(token([], [(A, 16, 32)]), token([(A, 0, 64)]), True, id="inside"),
        pytest.param(token([], [(A, 0, 64)]), token([(A, 16, 32)]), True, id="around"),
        pytest.param(token([], [(A, 0, 0)]), token([A]), False, id="empty range"),
    ],
)
def test_s12_a_barrier_only_on_conflict(rig: Rig, first: Token, second: Token, barrier: bool) -> None:
    assert conflict(first, second) is barrier, "the reference agrees"
    assert rig.barriers(first, second) == (".|" if barrier else "..")


def test_s12_a_launch_that_writes_conflicts_with_itself_and_one_that_reads_does_not(rig: Rig) -> None:
    assert rig.barriers(*[token([A], [B])] * 4) == ".|||"
    assert rig.barriers(*[token([A, C])] * 4) == "...."


def test_s12_two_readers_of_one_buffer_with_outputs_of_their_own(rig: Rig) -> None:
    one, two = token([A], [B]), token([A], [C])
    assert rig.barriers(one, two, one, two, one, two) == "..|.|."


def test_s12_a_barrier_covers_all_before_it(rig: Rig) -> None:
    assert rig.barriers(token([], [A]), token([], [B]), token([A]), token([B]), token([], [C])) == "..|.."


def test_s12_the_first_repeat_of_a_writer_still_orders_what_stands_before(rig: Rig) -> None:
    w = token([], [A])
    assert rig.barriers(token([], [B]), w, w, w, token([B])) == "..||.", "B was ordered with the first"
    assert rig.barriers(token([C])) == "."


def test_s12_a_reader_behind_a_barrier_needs_no_second_one(rig: Rig) -> None:
    r = token([A])
    assert rig.barriers(token([], [A]), r, r, r) == ".|.."


def test_s12_rows_of_the_device_that_are_no_launches_take_part(rig: Rig) -> None:
    fill = (1, 0, FILL, token([], [A], shape=None, cached=False), 0, b"", None, 0, 0, None)
    copy = (1, 0, COPY, token([A], [B], shape=None, cached=False), 0, b"", None, None, 0, None)
    assert rig.barriers(fill, copy, token([A]), read((B, 0, 64)), write((B, 0, 64))) == ".|.||"


def test_s12_many_ranges_of_one_buffer_are_merged_and_nothing_is_missed(rig: Rig) -> None:
    tiles = [token([], [(A, i * 100, i * 100 + 50)]) for i in range(40)]
    assert rig.barriers(*tiles[:8]) == "." * 8
    assert rig.barriers(tiles[20], token([(A, 720, 730)])) == ".|", "merged: a barrier too many"
    for tile in tiles:
        first, end = tile.writes[0][1:]
        assert rig.barriers(tile, token([(A, end - 1, end)])).endswith("|"), first


def test_s12_contiguous_tiles_of_one_buffer_never_conflict(rig: Rig) -> None:
    tiles = [token([], [(A, i * 64, i * 64 + 64)]) for i in range(1000)]
    assert rig.barriers(*tiles) == "." * 1000


def test_s12_ranges_of_finished_batches_are_not_merged_into_new_ones(rig: Rig) -> None:
    tiles = [token([], [(A, i * 100, i * 100 + 50)]) for i in range(12)]
    rig.batch(*tiles[:8])
    rig.batch(token([X]))
    rig.done(1)
    assert rig.barriers(tiles[8], tiles[9], token([(A, 0, 40)])) == "...", "only tiles 8 and 9 may be at work"


def test_hazard_state_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "_MAX_STATE", 100)
    rig.batch(*(token([], [i]) for i in range(60)))
    assert rig.barriers(token([], [1001]), token([], [1002])) == "|.", "a barrier is spent on forgetting"
    assert rig.barriers(token([], [1003])) == "."


# Rules 11 and 43


def test_rule_11_chains_and_diamonds(rig: Rig) -> None:
    assert rig.barriers(token([A], [B]), token([B], [C]), token([C], [D])) == ".||", "a chain"
    rig = Rig()
    assert rig.barriers(token([A], [B]), token([B], [C]), token([B], [D]), token([C, D], [X])) == ".|.|", "a diamond"
    rig = Rig()
    assert rig.barriers(token([A], [B]), token([A], [C]), token([X], [A])) == "..|", "a write after two reads"


def test_rule_43_a_submission_is_ordered_after_conflicting_work_still_in_flight(rig: Rig) -> None:
    assert rig.barriers(token([], [A])) == "."
    assert rig.barriers(token([], [X])) == "."
    assert rig.barriers(token([Y]), token([A]), token([X])) == ".|."


def test_rule_43_what_a_fence_has_confirmed_needs_no_barrier(rig: Rig) -> None:
    w, r = token([], [A]), token([A])
    rig.batch(w)
    rig.done(1)
    assert rig.barriers(r) == "."
    rig.batch(token([], [X]))
    rig.done(2)
    assert rig.barriers(w) == ".", "its reader is over, though another batch is in flight"
    assert rig.barriers(w) == "|"


def test_a_batch_that_ends_before_an_older_one(rig: Rig) -> None:
    a, b = token([], [A]), token([], [B])
    rig.batch(a)
    rig.batch(b)
    rig.done(2)
    assert rig.barriers(a) == "|", "batch 1 is in flight"
    rig.done(1)
    rig.done(3)
    assert rig.barriers(a, b) == ".."


def test_a_reader_of_a_finished_batch_is_ordered_after_a_newer_writer(rig: Rig) -> None:
    """The reader's first batch is over, so the writer needs no barrier and does not make the stream forget it."""
    r, w = token([A]), token([], [A])
    rig.batch(r)
    rig.batch(token([], [X]))
    rig.done(1)
    assert rig.barriers(w, r) == ".|"


def test_a_reader_that_comes_again_in_a_later_batch_is_known_as_of_then(rig: Rig) -> None:
    r = token([A])
    rig.batch(r)
    rig.batch(r)
    rig.done(1)
    assert rig.barriers(token([], [A])) == "|"


def test_after_a_reset_nothing_is_taken_for_granted() -> None:
    rig = Rig()
    p, r = token([A]), token([B], shape=RINGED)
    assert rig.batch(p, r) == ["i", "i0"]
    rig.stream.reset()
    assert rig.batch(p, r, p, r) == ["|i", "i1", "i", "1"], "slot 0 may be in use"
    rig.done(1, 2)
    rig.stream.reset()
    rig.stream.reset()
    assert rig.batch(r)[0].startswith("|i")


# S9: what is pushed. S10, S11: initializer needed or skipped, the ring of slots


def test_s9_equal_launches_in_a_row_are_pushed_once(rig: Rig) -> None:
    a, b = token([A]), token([B])
    assert rig.batch(a, a, a, b, b, a) == ["i", "", "", "i", "", "i"]
    assert rig.batch(a, a) == ["i", ""], "a new command buffer holds no descriptors"


def test_s9_transfers_leave_pushed_descriptors_alone(rig: Rig) -> None:
    a = token([A])
    assert rig.batch(a, write((X, 0, 64)), a, read((Y, 0, 64)), a) == ["i", "", "", "", ""]


def test_s9_other_layouts_disturb_what_was_pushed(rig: Rig) -> None:
    a, other, ringed = token([A]), token([A], shape=layout(1)), token([A], shape=RINGED)
    assert rig.batch(a, other, a, ringed, a) == ["i", "i", "i", "i0", "i"]


def test_s9_push_descriptors_off_means_slots_for_all() -> None:
    a = token([A])
    assert Rig(max_push=0).batch(a, a) == ["i0", "0"]


def test_s10_other_buffers_mean_another_slot_and_no_flush(rig: Rig) -> None:
    a, b = token([A], shape=RINGED), token([B], shape=RINGED)
    assert rig.batch(a, b, a, b) == ["i0", "i1", "0", "1"]
    assert rig.batch(b, a, token([C], shape=RINGED)) == ["1", "0", "i2"]


def test_s10_each_layout_has_a_ring_of_its_own(rig: Rig) -> None:
    a, b = token([A], shape=RINGED), token([A], shape=layout(PUSH_MAX + 2))
    assert rig.batch(a, b) == ["i0", "i0"]


def test_s10_a_layout_with_both_kinds_of_sets_speaks_of_its_slot(rig: Rig) -> None:
    a, b = token([A], shape=MIXED), token([B], shape=MIXED)
    assert rig.batch(a, b, a) == ["i0", "i1", "0"]
    assert rig.batch(a) == ["0"]


def test_s11_an_equal_token_skips_its_initializer_for_as_long_as_its_slot_lasts(rig: Rig) -> None:
    a = token([A], shape=RINGED)
    assert rig.batch(a) == ["i0"]
    rig.done(1)
    assert rig.batch(a, a) == ["0", "0"]


def test_s11_ids_are_compared_not_buffers(rig: Rig) -> None:
    """Freed and created anew with an equal handle: TVM skips the initializer that the second needs."""
    first, second = token([A], shape=RINGED), token([A], shape=RINGED)
    assert rig.batch(first, second) == ["i0", "i1"]
    pushed, same = token([A]), token([A])
    assert rig.batch(pushed, same) == ["i", "i"]


def test_s11_a_slot_in_flight_is_never_given_to_another_token(rig: Rig) -> None:
    tokens = [token([i], shape=RINGED) for i in range(200)]
    assert rig.batch(*tokens[:100]) == [f"i{i}" for i in range(100)]
    assert rig.batch(*tokens[100:110]) == [f"i{i}" for i in range(100, 110)], "none is free"
    rig.done(1)
    assert rig.batch(*tokens[110:113]) == ["i0", "i1", "i2"], "the longest unused go first"
    assert rig.batch(tokens[3], tokens[0]) == ["3", "i4"]


def test_s11_a_slot_that_is_used_again_counts_as_used_by_the_newer_batch(rig: Rig) -> None:
    tokens = [token([i], shape=RINGED) for i in range(64)]
    rig.batch(*tokens)
    rig.batch(tokens[0])
    rig.done(1)
    fresh = [token([i], shape=RINGED) for i in range(64)]
    marks = rig.batch(*fresh)
    assert marks[:63] == [f"i{i}" for i in range(1, 64)]
    assert marks[63] == "i64", "slot 0 is in flight"


def test_rule_1_each_launch_with_transient_entries_has_descriptors_of_its_own() -> None:
    """Scalars in a uniform buffer: two queued launches must not share what holds them, even with one token object."""
    first, second = token([A], cached=False), token([A], cached=False)
    assert Rig().batch(first, second, second) == ["i", "i", "i"]
    first, second = token([A], shape=RINGED, cached=False), token([A], shape=RINGED, cached=False)
    rig = Rig()
    assert rig.batch(first, second, second) == ["i0", "i1", "i2"]
    assert rig.batch(second) == ["i3"]


@pytest.mark.parametrize("same", [False, True], ids=["tokens of their own", "one token"])
def test_rule_1_slots_of_transient_launches_come_back(rig: Rig, same: bool) -> None:
    one = token([A], shape=RINGED, cached=False)
    for _ in range(40):
        marks = rig.batch(*(one if same else token([A], shape=RINGED, cached=False) for _ in range(16)))
        slots = [int(mark[1:]) for mark in marks]
        assert len(set(slots)) == 16
        assert max(slots) < 64 + 16
        if rig.serial > 3:
            rig.done(rig.serial - 3)


# Rules 2 to 4, 12


def test_rule_2_two_clients_alternating_on_one_kernel_share_a_batch() -> None:
    scheduler, rig = Scheduler(8), Rig(max_push=0)
    ours, theirs = token([A], [B]), token([C], [D])
    for session in (1, 2):
        scheduler.add_session(session)
    for n in range(8):
        scheduler.submit(launch(ours if n % 2 else theirs, n, session=1 + n % 2, stamp=n), n)
    rows = scheduler.take(256, 9)
    assert len(rows) == 8
    marks = rig.batch(*rows)
    assert [mark.strip("|") for mark in marks].count("i0") == 1, "each one's descriptors are written once"
    assert [mark.strip("|") for mark in marks].count("i1") == 1


@pytest.mark.parametrize("shape", [PUSHED, RINGED], ids=["pushed", "ringed"])
@pytest.mark.parametrize("kind", ["read-only", "writing", "alternating", "transient", "all different"])
def test_rule_3_equal_launches_cost_linear_time(shape: Layout, kind: str) -> None:
    def rows(n: int) -> list[Row]:
        a, b = token([A], [] if kind == "read-only" else [B], shape=shape), token([C], [D], shape=shape)
        if kind == "transient":
            return [launch(token([A], [], shape=shape, cached=False)) for _ in range(n)]
        if kind == "all different":
            return [launch(token([A], [10 + i], shape=shape)) for i in range(n)]
        return [launch(b if kind == "alternating" and i % 2 else a) for i in range(n)]

    def cost(n: int) -> int:
        rig, all_rows = Rig(), rows(n)
        return steps(lambda: [rig.batch(*all_rows[i : i + 250]) for i in range(0, n, 250)])

    small, large = cost(1_000), cost(20_000)
    assert large < 20.5 * small
    assert large < 80 * 20_000


class CountedId(int):
    """A buffer or token id that counts how often tables and loops look at it."""

    looks = 0

    def __hash__(self) -> int:
        CountedId.looks += 1
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        CountedId.looks += 1
        return int.__eq__(self, other)


def test_rule_3_no_table_is_scanned_behind_the_scenes() -> None:
    """What `steps` does not see: searches inside lists and tables."""

    def looks(n: int) -> int:
        a, b = (token([CountedId(x)], [CountedId(y)], shape=RINGED) for x, y in ((A, B), (C, D)))
        a.id, b.id = CountedId(a.id), CountedId(b.id)
        rig = Rig(direct=64)
        CountedId.looks = 0
        for _ in range(n // 200):
            rig.batch(*[a, b] * 100)
        return CountedId.looks

    small, large = looks(2_000), looks(20_000)
    assert large <= 10 * small
    assert large < 60 * 20_000


def test_rule_4_a_buffer_that_is_forgotten_leaves_no_trace(rig: Rig) -> None:
    rig.batch(token([A], [B]), token([C]))
    rig.stream.forget((A, B, 99))
    assert rig.barriers(token([], [C]), token([X])) == "|."


def test_rule_12_a_read_behind_a_dispatch_sees_its_result(rig: Rig) -> None:
    w = token([], [A])
    assert rig.batch(w, read((A, 0, 64))) == ["i", "|"]
    rig = Rig(direct=64)
    assert rig.batch(w, read((A, 0, 64))) == ["i", "|"], "not by the host while the device is to write it"
    assert rig.batch(read((A, 0, 64))) == [""], "ordered already"
    rig.done(1)
    assert rig.batch(read((A, 0, 64))) == ["d"]


# The host's own hand


def test_the_host_moves_small_transfers_when_nothing_is_in_the_way() -> None:
    rig = Rig(direct=64)
    assert rig.batch(create(A, 64), write((A, 0, 64)), read((A, 0, 64)), create(B, 0)) == ["d"] * 4
    assert rig.batch(create(C, 65), write((D, 0, 65)), read((X, 0, 65))) == [""] * 3


def test_the_host_moves_nothing_where_it_must_not() -> None:
    rig = Rig(direct=0)
    assert rig.batch(create(A, 64), write((A, 0, 64)), read((A, 0, 64))) == ["", "|", "|"]
    assert rig.batch(create(B, 0)) == ["d"], "nothing to move"


@pytest.mark.parametrize(
    ("before", "transfer", "direct"),
    [
        pytest.param(token([A]), read((A, 0, 64)), True, id="read what the device reads"),
        pytest.param(token([], [A]), read((A, 0, 64)), False, id="read what the device writes"),
        pytest.param(token([A]), write((A, 0, 64)), False, id="write what the device reads"),
        pytest.param(token([], [A]), write((A, 0, 64)), False, id="write what the device writes"),
        pytest.param(token([B], [C]), write((A, 0, 64)), True, id="another buffer"),
        pytest.param(create(A, 65), write((A, 0, 64)), False, id="a buffer that the device creates"),
    ],
)
def test_the_host_keeps_off_what_the_device_uses(before: Token | Row, transfer: Row, direct: bool) -> None:
    same, later, over = Rig(direct=64), Rig(direct=64), Rig(direct=64)
    assert ("d" in same.batch(before, transfer)[1]) is direct, "in one batch"
    later.batch(before)
    later.batch(token([], [X]), token([], [X]))
    assert ("d" in later.batch(transfer)[0]) is direct, "in flight, and behind a barrier that orders only the device"
    over.batch(before)
    over.batch(token([], [X]))
    over.done(1)
    assert "d" in over.batch(transfer)[0], "over"


def test_the_host_may_write_behind_its_own_reads_and_before_the_devices_work() -> None:
    rig = Rig(direct=64)
    assert rig.batch(read((A, 0, 64)), write((A, 0, 64)), token([A], [B]), write((A, 0, 64))) == ["d", "d", "i", "|"]


def test_what_the_host_needs_to_know_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "_MAX_STATE", 100)
    rig = Rig(direct=64)
    for n in range(1, 30):
        rig.batch(*(token([], [n * 100 + i]) for i in range(20)))
        assert rig.batch(write((n * 100, 0, 64))) != ["d"]
        if rig.serial > 4:
            rig.done(rig.serial - 4, rig.serial - 5)
    assert len(rig.stream._last_use) < 200
    rig.done(*range(rig.serial - 3, rig.serial + 1))
    rig.batch()
    assert not rig.stream._last_use
