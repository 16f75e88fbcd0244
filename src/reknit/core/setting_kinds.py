"""Kinds of values that settings have: each turns what was said into the value, or raises `Unfit`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from reknit.core import address, labels
from reknit.core.discovery import source
from reknit.core.errors import UsageError
from reknit.core.subjects import valid_name

AUTO = 0
"""`nproc_per_node` of this value: as many workers as this process may use cores."""

Parse = Callable[[Any], Any]
"""Takes what a flag, the environment or a file says and returns the value; raises `Unfit`."""


MOST = 2**31 - 1
"""Largest whole number that is taken: what is beyond it is a slip, and would not travel."""


class Unfit(Exception):
    """A value is not of its setting's kind; the text goes on from the setting's name."""


class Named(Unfit):
    """The same, of a value whose part that does not fit the text names already."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSpan:
    """How many nodes a job needs and takes: torchrun's `--nnodes MIN:MAX`."""

    least: int = 1
    most: int = 1

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


ONE_NODE = NodeSpan()


def whole(least: int) -> Parse:
    """A whole number of at least so much."""

    def parse(value: Any) -> int:
        number = None
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip()):
            number = int(value)
        if number is None or number < least:
            raise Unfit(f"must be a whole number of at least {least}")
        if number > MOST:
            raise Unfit(f"must be at most {MOST}")
        return number

    return parse


def number(least: float, *, above: bool = False) -> Parse:
    """A finite number of at least so much, or above it."""

    def parse(value: Any) -> float:
        said = f"must be a number {'above' if above else 'of at least'} {least:g}"
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise Unfit(said)
        try:
            number = float(value)
        except ValueError:
            raise Unfit(said) from None
        if not (least < number if above else least <= number) or number == float("inf"):
            raise Unfit(said)
        return number

    return parse


def text(value: Any) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise Unfit("must be text")
    return value


def folder(value: Any) -> str:
    """A folder; what looks like an address is refused, lest it become a folder of that name."""
    folder = text(value)
    if "://" in folder:
        raise Unfit("must be a folder (URLs are not supported), on a file system that all nodes share")
    return folder


def yes_or_no(value: Any) -> bool:
    """True or false, also as people write it."""
    if isinstance(value, bool):
        return value
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        return known[str(value).strip().lower()]
    except KeyError:
        raise Unfit("must be true or false") from None


def when(value: Any) -> str:
    """`on`, `off` or `auto`."""
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return "on" if yes_or_no(value) else "off"
    except Unfit:
        raise Unfit("must be auto, 1 or 0") from None


def one_of(*words: str) -> Parse:
    """One of these words."""

    def parse(value: Any) -> str:
        if value not in words:
            raise Unfit(f"must be {' or '.join(words)}")
        return str(value)

    return parse


def span(value: Any) -> NodeSpan:
    """MIN:MAX nodes, or one number."""
    if isinstance(value, NodeSpan):
        return value
    match = re.fullmatch(r"(\d+)(?::(\d+))?", str(value).strip())
    if not match:
        raise Unfit("must be a number of nodes or MIN:MAX, as in 1:4")
    least, most = int(match[1]), int(match[2] or match[1])
    if least < 1:
        raise Unfit("must be at least 1")
    if least > most:
        raise Unfit(f"has a minimum ({least}) above its maximum ({most})")
    return NodeSpan(least, most)


def workers(value: Any) -> int:
    """A number of workers, or `AUTO`."""
    if isinstance(value, str) and value.strip().lower() in {"auto", "cpu"}:
        return AUTO
    try:
        return int(whole(1)(value))
    except Unfit:
        raise Unfit("must be a whole number of at least 1, or auto") from None


def port(value: Any) -> int:
    """A port number; 0: any."""
    try:
        number = int(whole(0)(value))
    except Unfit:
        number = -1
    if not 0 <= number <= 65535:
        raise Unfit("must be a port number, 0 to 65535")
    return number


def name(what: str, longest: int = 0) -> Parse:
    """A name that may be part of a subject; empty: none."""

    def parse(value: Any) -> str:
        name = text(value)
        if name:
            try:
                valid_name(name, what)
            except UsageError as error:
                raise Unfit(f"is not a valid name: {error.hint}") from None
            if longest and len(name) > longest:
                raise Unfit(f"is too long: at most {longest} characters")
        return name

    return parse


def several(value: Any) -> list[str]:
    """Texts of a flag that may be given again, of one text with commas, or of a list in a file."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(v, str) for v in values):
        raise Unfit("must be text, or a list of texts")
    return [part.strip() for text in values for part in text.split(",") if part.strip()]


def labels_text(value: Any) -> str:
    """Labels, as `core.labels` writes them."""
    try:
        return labels.text_of(labels.parse(value if isinstance(value, dict) else several(value)))
    except UsageError as error:
        raise Named(f"cannot be used: {error}") from None


def seeds_text(value: Any) -> str:
    """Addresses with commas between them."""
    try:
        return ",".join(address.join(*address.split(text)) for text in several(value))
    except UsageError as error:
        raise Named(f"cannot be used: {error}") from None


def sources_text(value: Any) -> str:
    """Ways to find nodes, with commas between them."""
    try:
        return ",".join(str(found) for found in source.parse_all(several(value)))
    except UsageError as error:
        raise Named(f"cannot be used: {error}") from None
