"""Names and subjects: `reknit.<job>.<area>.<what>`. Names become subject tokens, so they are validated here, once."""

from __future__ import annotations

import re

from reknit.core.errors import UsageError
from reknit.core.events import AREAS, Event, kind_of

ROOT = "reknit"
STREAM = "REKNIT"
LIVE = "live"
"""Stored events are republished under `live.<subject>` by the broker, after they are on disk."""
MAX_NAME = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")

STORED_SUBJECTS = tuple(f"{ROOT}.*.{area}.>" for area in AREAS if area != "heartbeat")


def valid_name(name: str, what: str) -> str:
    """Return `name` if it may be a subject token (job, node, worker).

    Raises:
        UsageError: empty, too long, or with characters outside A-Z a-z 0-9 _ -.
    """
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise UsageError(
            f"{what} {name!r} is not a valid name",
            hint=f"use 1 to {MAX_NAME} of A-Z a-z 0-9 _ - and begin with a letter or digit",
        )
    return name


def subject_of(job: str, event: Event) -> str:
    """Return the subject of a durable event."""
    return f"{ROOT}.{job}.{kind_of(event)}"


def heartbeat_subject(job: str, member: str) -> str:
    """Return the subject of a worker's or node's heartbeats."""
    return f"{ROOT}.{job}.heartbeat.{member}"


def service_subject(service: str, verb: str) -> str:
    """Return the request-reply subject of a service (outside the stream)."""
    return f"{ROOT}-svc.{service}.{verb}"


def job_and_area(subject: str) -> tuple[str, str]:
    """Split a subject (with or without the `live.` prefix) into job and area."""
    tokens = subject.removeprefix(f"{LIVE}.").split(".")
    if len(tokens) < 4 or tokens[0] != ROOT:
        raise UsageError(f"{subject!r} is not a subject of this system")
    return tokens[1], tokens[2]
