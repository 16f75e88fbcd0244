"""Logging: one line a record on stderr, for people, or JSON when REKNIT_LOG_FORMAT=json.

Used like this: `_log = log.get("bus")`, then `_log.warning("bad message", subject=subject)`. Works before `setup`,
which only adds what every record of the process says. REKNIT_LOG_LEVEL (debug, info, warning, error) is read at import.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, cast

import structlog

FORMAT = "REKNIT_LOG_FORMAT"
LEVEL = "REKNIT_LOG_LEVEL"
_FRAMES = 3
_Record = MutableMapping[str, Any]


def get(part: str) -> structlog.typing.FilteringBoundLogger:
    """Return the logger of one part of the program."""
    return cast("structlog.typing.FilteringBoundLogger", structlog.get_logger(part=part))


def setup(service: str, **fields: str) -> None:
    """Name the process: `service` and the fields stand in every record from now on."""
    structlog.contextvars.clear_contextvars()
    _process.clear()
    _process.update({"service": service, **fields})


_process: dict[str, str] = {}


def _add_process(_logger: Any, _method: str, record: _Record) -> _Record:
    for key, value in _process.items():
        record.setdefault(key, value)
    return record


def _short_exception(_logger: Any, _method: str, record: _Record) -> _Record:
    """Turn exc_info into one line: class, text and the innermost places; the whole traceback only in JSON."""
    info = record.pop("exc_info", None)
    if not info:
        return record
    error = info if isinstance(info, BaseException) else sys.exc_info()[1]
    if error is not None:
        places = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
        record["error"] = f"{type(error).__name__}: {error}"
        record["at"] = " > ".join(f"{os.path.basename(p.filename)}:{p.lineno} {p.name}" for p in places)  # noqa: PTH119
        if _json():
            record["traceback"] = "".join(traceback.format_exception(error))
    return record


def _line(_logger: Any, _method: str, record: _Record) -> str:
    head = f"{record.pop('time')} {record.pop('level'):<7} {record.pop('service', 'reknit')}"
    part, event = record.pop("part", ""), record.pop("event", "")
    rest = "".join(f"  {key}={_value(value)}" for key, value in record.items())
    return f"{head}{'/' + part if part else ''}: {_value(event, quote=False)}{rest}"


def _value(value: Any, *, quote: bool = True) -> str:
    text = value if isinstance(value, str) else repr(value)
    if quote and (not text or any(c.isspace() or c in "\"'=" for c in text)) and isinstance(value, str):
        return repr(text)
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _json() -> bool:
    return os.environ.get(FORMAT, "").lower() == "json"


def _render(logger: Any, method: str, record: _Record) -> str:
    if _json():
        return str(structlog.processors.JSONRenderer(ensure_ascii=False, default=repr)(logger, method, record))
    return _line(logger, method, record)


def _to_stderr(*_args: Any) -> structlog.WriteLogger:
    # Looked up at each use: a test, a daemon or a fork may have put another file there.
    return structlog.WriteLogger(sys.stderr)


def _level() -> int:
    return logging.getLevelNamesMapping().get(os.environ.get(LEVEL, "info").upper(), logging.INFO)


structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        _add_process,
        _short_exception,
        _render,
    ],
    wrapper_class=structlog.make_filtering_bound_logger(_level()),
    logger_factory=_to_stderr,
    cache_logger_on_first_use=False,
)
