"""Times on the device: what is learned of them, how it is used, and how far off it is."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkqueue.models.predict import Predictor


def taught(*times: tuple[int, float]) -> Predictor:
    predictor = Predictor()
    for samples, us in times:
        predictor.learn("group", samples, us)
    return predictor


def test_nothing_is_said_of_a_group_that_was_never_seen() -> None:
    predictor = taught((4, 100))
    assert predictor.predict("other", 4) is None
    assert predictor.most("other", 1, 32) == 32


def test_a_known_size_is_what_was_measured() -> None:
    assert taught((4, 100), (4, 110), (4, 90)).predict("group", 4) == pytest.approx(100)


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param(3, 130, id="between"),
        pytest.param(6, 160, id="between others"),
        pytest.param(1, 110, id="below"),
        pytest.param(16, 260, id="above"),
    ],
)
def test_other_sizes_lie_along_a_line(samples: int, expected: float) -> None:
    predictor = taught((2, 120), (4, 140), (8, 180))
    assert predictor.predict("group", samples) == pytest.approx(expected)


def test_steps_are_followed_where_they_were_seen() -> None:
    predictor = taught((1, 100), (8, 100), (9, 200), (16, 200))
    assert predictor.predict("group", 5) == pytest.approx(100)
    assert predictor.predict("group", 12) == pytest.approx(200)
    assert predictor.most("group", 150, 16) == 8


def test_of_one_size_alone_more_samples_are_not_thought_to_be_free() -> None:
    predictor = taught((4, 100))
    assert predictor.predict("group", 8) == pytest.approx(200)
    assert predictor.most("group", 250, 32) == 10


def test_times_that_fall_with_the_size_do_not_fall_below_what_was_seen() -> None:
    predictor = taught((1, 200), (8, 100))
    assert predictor.predict("group", 16) == pytest.approx(100)
    assert predictor.predict("group", 1) == pytest.approx(200)


def test_a_slower_device_is_noticed() -> None:
    predictor = taught(*[(4, 100)] * 20, *[(4, 200)] * 20)
    assert predictor.predict("group", 4) == pytest.approx(200, rel=0.1)


def test_one_outlier_changes_little() -> None:
    predictor = taught(*[(4, 100)] * 20, (4, 100_000))
    assert predictor.predict("group", 4) == pytest.approx(137.5)


def test_a_size_that_seemed_too_slow_is_tried_again() -> None:
    predictor = taught((8, 100_000), *[(4, 100)] * 10)
    assert predictor.most("group", 1000, 8) == 4
    for _ in range(64):
        predictor.learn("group", 4, 100)
    assert predictor.most("group", 1000, 8) == 8


def test_times_of_nothing_teach_nothing() -> None:
    predictor = taught((4, 0), (4, -1))
    assert predictor.predict("group", 4) is None
    assert predictor.error()["checked"] == 0


def test_errors_are_relative_to_what_was_measured() -> None:
    assert taught((4, 100), (4, 200), (4, 100)).error() == {
        "checked": 2,
        "mean_absolute": pytest.approx((0.5 + 0.5) / 2),
        "bias": pytest.approx((-0.5 + 0.5) / 2),
    }
    assert taught((4, 100)).error() == {"checked": 0, "mean_absolute": 0, "bias": 0}


def test_noisy_times_of_a_line_are_learned() -> None:
    rng = Random(1)
    predictor = Predictor()
    for _ in range(500):
        samples = rng.randint(1, 32)
        predictor.learn("group", samples, (80 + 5 * samples) * rng.uniform(0.9, 1.1))
    assert predictor.error()["mean_absolute"] < 0.08
    assert abs(predictor.error()["bias"]) < 0.03
    assert predictor.most("group", 80 + 5 * 16, 32) in range(12, 21)


def test_groups_are_bounded() -> None:
    predictor = Predictor()
    for group in range(2000):
        predictor.learn(group, 1, 100)
    assert predictor.predict(0, 1) is None
    assert predictor.predict(1999, 1) == 100


measured = st.lists(st.tuples(st.integers(1, 64), st.floats(1, 1e6)), min_size=1, max_size=100)


@given(measured, st.floats(1, 1e6), st.integers(1, 64))
def test_what_is_allowed_is_thought_to_be_in_time_and_one_more_is_not(
    times: list[tuple[int, float]], limit_us: float, largest: int
) -> None:
    predictor = taught(*times)
    most = predictor.most("group", limit_us, largest)
    assert 1 <= most <= largest
    for samples, in_time in ((most, True), (most + 1, False)):
        predicted = predictor.predict("group", samples)
        assert predicted is not None
        if in_time and most > 1:
            assert predicted <= limit_us
        elif not in_time and most < largest:
            assert predicted > limit_us
