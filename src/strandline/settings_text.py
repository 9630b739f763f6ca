"""How a setting is read, wherever it is written: in `strand.toml`, in a variable, behind `--set`.

A value comes as text or as TOML has it, and leaves in plain units: bytes, seconds, whole numbers. A reader takes what
was written, or raises ValueError with what it expected. What all settings share is written here once; bounds and words
differ on purpose, and each setting hands its own over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

T = TypeVar("T")
Reader = Callable[[object], T]

SIZE = 'a size such as "64MiB", "1GB" or "512k"'
TRUTH = {"true": True, "false": False}

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Key:
    """One setting: its default in the form that it is kept in, how it is read, and what it means.

    One that is secret is put away and never shown; a wrong value of one that is sensitive may be a secret, and is not
    repeated. An address is shown without what may be secret in it.
    """

    default: object
    read: Reader[object]
    meaning: str
    is_secret: bool = False
    is_sensitive: bool = False
    is_address: bool = False
    unit: Literal["s", "bytes"] | None = None
    """What a number among its values counts, for people to read."""

    @property
    def expects(self) -> str:
        """What its values look like, in the words of the error about a wrong one."""
        try:
            self.read(None)
        except ValueError as error:
            return str(error)
        raise AssertionError(f"a setting takes no value at all: {self.meaning}")


def parse_size(text: str) -> int:
    """Bytes in "64MiB", "1GB" or "512k": KiB and k are 1024, KB is 1000, in any case; a bare number is bytes."""
    match = re.fullmatch(r"\s*(\d+)(\.\d+)?\s*(?:([kmgt])(i?b)?|b)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(SIZE)
    whole, part, prefix, suffix = match.groups()
    base = 1000 if (suffix or "").lower() == "b" else 1024
    factor = base ** ("kmgt".index(prefix.lower()) + 1 if prefix else 0)
    return int(float(whole + part) * factor) if part else int(whole) * factor


def parse_duration(text: str) -> float:
    """Seconds in "250ms", "60s", "5m", "2h" or "7d"; a bare number is refused, because readers differ on its unit."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", text)
    if match is None:
        raise ValueError('a duration such as "250ms", "60s", "5m", "2h" or "7d"')
    return float(match[1]) * _UNIT_SECONDS[match[2]]


def _written(value: object, *kinds: type) -> str:
    """A value of one of these kinds as text; "" for any other, and for a truth, which is a number to Python alone."""
    return str(value) if isinstance(value, kinds) and not isinstance(value, bool) else ""


def text(words: str) -> Reader[str]:
    """A text that says something."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError(words)
        return value.strip()

    return read


def size(*, if_nothing: str = "", floats: bool = False) -> Reader[int]:
    """Bytes, with a unit or without. 0 is refused with the words `if_nothing`, where there are some."""

    def read(value: object) -> int:
        size_bytes = parse_size(_written(value, str, int, *([float] if floats else [])))
        if if_nothing and size_bytes == 0:
            raise ValueError(if_nothing)
        return size_bytes

    return read


def duration(*, if_nothing: str = "", floats: bool = False) -> Reader[float]:
    """Seconds, from a text with a unit; `floats` are seconds already, as they are stored."""

    def read(value: object) -> float:
        seconds = value if floats and isinstance(value, float) else parse_duration(_written(value, str))
        if if_nothing and seconds <= 0:
            raise ValueError(if_nothing)
        return seconds

    return read


def count(words: str, most: int | None = None) -> Reader[int]:
    """A whole number from 1."""

    def read(value: object) -> int:
        digits = _written(value, str, int)
        if not digits.isdecimal() or int(digits) < 1 or (most is not None and int(digits) > most):
            raise ValueError(words)
        return int(digits)

    return read


def choice(words: str, choices: Mapping[str, T], *, any_case: bool = False) -> Reader[T]:
    """What a word stands for; TOML's truths are the words `true` and `false`."""

    def read(value: object) -> T:
        word = str(value).lower() if any_case or isinstance(value, bool) else value
        if not isinstance(word, str) or word not in choices:
            raise ValueError(words)
        return choices[word]

    return read


def or_off(read_on: Reader[T], *also: str) -> Reader[T | None]:
    """The same, or None for "off"."""

    def read(value: object) -> T | None:
        try:
            return None if value in ("off", *also) else read_on(value)
        except ValueError as error:
            raise ValueError(f'{error}, or "off"') from None

    return read
