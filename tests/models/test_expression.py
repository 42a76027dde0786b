"""Expressions: against Python on random ones, and what is wrong with its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkqueue.errors import InvalidError
from vkqueue.models.expression import MAX_DEPTH, MAX_LENGTH, Expression

SIZES = {"batch": 6, "seq": 128, "d": 7}


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner)
    return (
        pairs.map(" ".join)
        | inner.map("({})".format)
        | inner.map("-{}".format)
        | st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda p: f"{p[0]}({p[1]}, {p[2]})")
    )


EXPRESSIONS = st.recursive(st.sampled_from(["batch", "seq", "d", "3", "0", "17"]), grown, max_leaves=8)


@given(EXPRESSIONS)
def test_values_are_those_of_python(text: str) -> None:
    functions = {"min": min, "max": max, "__builtins__": {}}
    try:
        wanted = eval(text, functions, dict(SIZES))
    except ZeroDivisionError:
        with pytest.raises(InvalidError, match="division by zero"):
            Expression(text)(SIZES)
        return
    assert Expression(text)(SIZES) == wanted


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ceil(batch*seq, 64)", 12),
        ("ceil(0, 64)", 0),
        ("align(batch, 4)", 8),
        ("seq / 8", 16),
        ("2 - 3 - 4", -5),
        ("seq // 3 * 3", 126),
        ("9223372036854775807", 2**63 - 1),
        (" batch\t* seq * 384 * 4 ", 6 * 128 * 384 * 4),
    ],
)
def test_values(text: str, value: int) -> None:
    assert Expression(text)(SIZES) == value


def test_names_are_those_of_dimensions_alone() -> None:
    assert Expression("max(batch, ceil(seq, 2)) + seq").names == {"batch", "seq"}


@pytest.mark.parametrize(
    ("text", "said", "position"),
    [
        ("", "expected an integer", 0),
        ("batch +", "expected an integer", 7),
        ("batch seq", "expected an operator", 6),
        ("(batch", "expected ')'", 6),
        ("batch ** 2", "expected an integer", 7),
        ("  $", "'$' is no part", 2),
        ("1.5", "'.' is no part", 1),
        ("cei(1, 2)", "no function 'cei'", 0),
        ("ceil(1)", "takes 2 arguments, got 1", 0),
        ("min(1)", "takes 2 to 16", 0),
        ("9223372036854775808", "over 9223372036854775807", 0),
        ("batch.__class__", "'.' is no part", 5),
    ],
)
def test_what_does_not_parse_is_said_with_its_place(text: str, said: str, position: int) -> None:
    with pytest.raises(InvalidError) as error:
        Expression(text)
    assert said in error.value.message
    assert f"character {position + 1}" in error.value.message
    assert error.value.data == {"position": position}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seq / 3", "128 / 3 leaves a remainder"),
        ("seq % (batch - 6)", "division by zero"),
        ("ceil(seq, 0)", "at least 1, got 0"),
        ("align(seq, -4)", "at least 1, got -4"),
        ("9223372036854775807 + 1", "over 2**63"),
        ("4611686018427387904 * 4", "over 2**63"),
        ("width", "no dimension is called 'width'"),
    ],
)
def test_what_has_no_value(text: str, said: str) -> None:
    expression = Expression(text)
    with pytest.raises(InvalidError) as error:
        expression(SIZES)
    assert said in error.value.message


def test_length_and_depth_are_bounded() -> None:
    assert Expression("(" * (MAX_DEPTH - 1) + "1" + ")" * (MAX_DEPTH - 1))({}) == 1
    with pytest.raises(InvalidError, match="nested deeper"):
        Expression("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH)
    assert Expression("-" * 400 + "1")({}) == 1
    with pytest.raises(InvalidError, match=f"limit of {MAX_LENGTH}"):
        Expression("1" + "+1" * (MAX_LENGTH // 2))
