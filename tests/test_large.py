"""Memory for large data: used pages come back, and never while anybody can see them."""

from __future__ import annotations

import gc

from vkqueue import large


def test_pages_come_back_once_the_last_view_is_gone() -> None:
    first = large.new_large(3 << 20)
    first[:4] = b"abcd"
    part = first[:4]
    del first
    gc.collect()
    other = large.new_large(3 << 20)
    other[:4] = b"wxyz"
    assert bytes(part) == b"abcd"  # a part of it keeps all of it
    before = large.idle_bytes()
    del part
    gc.collect()
    assert large.idle_bytes() == before + (4 << 20)
    again = large.new_large(4 << 20)
    assert large.idle_bytes() == before
    del again, other


def test_what_is_kept_is_bounded() -> None:
    views = [large.new_large(64 << 20) for _ in range(5)]  # not touched: costs nothing
    assert {len(view) for view in views} == {64 << 20}
    views.clear()
    gc.collect()
    assert 0 < large.idle_bytes() <= large.KEEP_BYTES
