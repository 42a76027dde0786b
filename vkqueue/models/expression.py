"""Integer expressions in the sizes, grids and scalars of a model: "ceil(batch * seq, 64)".

    expression = term, { ("+" | "-"), term }
    term       = unary, { ("*" | "/" | "//" | "%"), unary }
    unary      = "-", unary | atom
    atom       = integer | name | function "(" expression { "," expression } ")" | "(" expression ")"

Names are those of a model's dimensions, and `batch`. Arithmetic is exact: `/` of what does not divide is an error, as
is any value of 2**63 or more; `//` and `%` round down. Text is never run as Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vkqueue.errors import InvalidError, brief

# Arbitrary: what people write is a tenth of it.
MAX_LENGTH = 500
MAX_DEPTH = 32
# Values have to fit Vulkan's sizes and the protocol's integers, which have 64 bits and a sign.
MAX_VALUE = 2**63 - 1

_TOKEN = re.compile(r"\s*(?:(?P<number>[0-9]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<operator>//|[-+*/%(),]))")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_DIGITS = 19
_FUNCTIONS: dict[str, tuple[int, int]] = {"min": (2, 16), "max": (2, 16), "ceil": (2, 2), "align": (2, 2)}
"""Least and most arguments."""
RESERVED = frozenset({"batch", *_FUNCTIONS})
"""Names that no dimension may have."""

Sizes = Mapping[str, int]
"""A value for each dimension, and for `batch`."""
_Eval = Callable[[Sizes], int]


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class Expression:
    """A checked expression.

    Args:
        text: at most `MAX_LENGTH` characters.

    Attributes:
        text: as it was given.
        names: the dimensions in it, and `batch`.

    Raises:
        InvalidError: it does not parse, or is longer or deeper than allowed; with its place in the text.
    """

    __slots__ = ("_value", "names", "text")

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        self.text = text
        self._value = parser.whole()
        self.names = frozenset(parser.names)

    def __call__(self, sizes: Sizes) -> int:
        """Its value.

        Raises:
            InvalidError: a division by zero or with a remainder, or a value out of range; with its place in the text.
        """
        return self._value(sizes)

    def renamed(self, names: Mapping[str, str]) -> Expression:
        """The same with other names, or numbers, for some of its dimensions."""
        if self.names.isdisjoint(names):
            return self
        return Expression(_NAME.sub(lambda match: names.get(match[0], match[0]), self.text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


class _Parser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise InvalidError(f"expression: {len(text)} characters are over the limit of {MAX_LENGTH}")
        self._text = text
        self._tokens = self._split()
        self._next = 0
        self._depth = 0
        self.names: set[str] = set()

    def _error(self, what: str, at: int) -> InvalidError:
        return InvalidError(f"expression {brief(self._text)}, at character {at + 1}: {what}", {"position": at})

    def _split(self) -> list[_Token]:
        tokens, at, text = [], 0, self._text
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self._error(f"{text[at]!r} is no part of an expression (integers, names, + - * / // % ( ) ,)", at)
            kind = match.lastgroup
            assert kind is not None
            tokens.append(_Token(kind, match[kind], match.start(kind)))
            at = match.end()
        tokens.append(_Token("end", "the end", end))
        return tokens

    def whole(self) -> _Eval:
        value = self._sum()
        token = self._tokens[self._next]
        if token.kind != "end":
            raise self._error(f"expected an operator or the end, got {token.text!r}", token.at)
        return value

    def _take(self, *operators: str) -> _Token | None:
        token = self._tokens[self._next]
        if token.kind == "operator" and token.text in operators:
            self._next += 1
            return token
        return None

    def _sum(self) -> _Eval:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH}", self._tokens[self._next].at)
        value = self._chain(self._product, "+", "-")
        self._depth -= 1
        return value

    def _product(self) -> _Eval:
        return self._chain(self._unary, "*", "/", "//", "%")

    def _chain(self, operand: Callable[[], _Eval], *operators: str) -> _Eval:
        value = operand()
        rest: list[tuple[_Token, _Eval]] = []
        while (token := self._take(*operators)) is not None:
            rest.append((token, operand()))
        if not rest:
            return value

        def run(sizes: Sizes) -> int:
            total = value(sizes)
            for token, other in rest:
                total = self._apply(token, total, other(sizes))
            return total

        return run

    def _unary(self) -> _Eval:
        signs = 0
        while self._take("-"):
            signs += 1
        value = self._atom()
        return (lambda sizes: -value(sizes)) if signs % 2 else value

    def _atom(self) -> _Eval:
        token = self._tokens[self._next]
        self._next += 1
        if token.kind == "number":
            return self._number(token)
        if token.kind == "name":
            if self._take("("):
                return self._call(token)
            self.names.add(token.text)
            return self._named(token)
        if token.text == "(":
            value = self._sum()
            self._close()
            return value
        raise self._error(f"expected an integer, a name or '(', got {token.text!r}", token.at)

    def _number(self, token: _Token) -> _Eval:
        if len(token.text) > _MAX_DIGITS or int(token.text) > MAX_VALUE:
            raise self._error(f"the integer is over {MAX_VALUE}", token.at)
        number = int(token.text)
        return lambda sizes: number

    def _named(self, token: _Token) -> _Eval:
        def run(sizes: Sizes) -> int:
            try:
                return sizes[token.text]
            except KeyError:
                raise self._error(f"no dimension is called {token.text!r}", token.at) from None

        return run

    def _close(self) -> None:
        token = self._tokens[self._next]
        if not self._take(")"):
            raise self._error(f"expected ')', got {token.text!r}", token.at)

    def _call(self, token: _Token) -> _Eval:
        if token.text not in _FUNCTIONS:
            raise self._error(f"no function {token.text!r}; there are {', '.join(_FUNCTIONS)}", token.at)
        arguments = [self._sum()]
        while self._take(","):
            arguments.append(self._sum())
        self._close()
        least, most = _FUNCTIONS[token.text]
        if not least <= len(arguments) <= most:
            count = str(least) if least == most else f"{least} to {most}"
            raise self._error(f"{token.text} takes {count} arguments, got {len(arguments)}", token.at)
        if token.text in ("min", "max"):
            choose: Any = min if token.text == "min" else max
            return lambda sizes: int(choose(argument(sizes) for argument in arguments))
        dividend, divisor = arguments
        rounding = token.text == "align"

        def run(sizes: Sizes) -> int:
            step = divisor(sizes)
            if step <= 0:
                raise self._error(f"{token.text} needs a second argument of at least 1, got {step}", token.at)
            parts = -(-dividend(sizes) // step)
            return self._checked(parts * step, token) if rounding else parts

        return run

    def _apply(self, token: _Token, left: int, right: int) -> int:
        operator = token.text
        if operator == "+":
            return self._checked(left + right, token)
        if operator == "-":
            return self._checked(left - right, token)
        if operator == "*":
            return self._checked(left * right, token)
        if right == 0:
            raise self._error(f"{left} {operator} 0: division by zero", token.at)
        if operator == "%":
            return left % right
        if operator == "/" and left % right:
            raise self._error(f"{left} / {right} leaves a remainder; use // or ceil(a, b) to round", token.at)
        return left // right

    def _checked(self, value: int, token: _Token) -> int:
        if not -MAX_VALUE <= value <= MAX_VALUE:
            raise self._error("the value is over 2**63", token.at)
        return value


__all__ = ["MAX_DEPTH", "MAX_LENGTH", "MAX_VALUE", "RESERVED", "Expression", "Sizes"]
