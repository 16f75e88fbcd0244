"""What the agent says in the registry of itself and of its workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from reknit.core.registry_entry import Entry, Health

from .state import Place, State
from .stuck import MEANING

_TEXT = 200


def entries(
    state: State, letters: Mapping[str, str], addresses: Mapping[str, str], *, address: str, version: str, since: float
) -> tuple[Entry, ...]:
    """Return the node's entries: its agent, then each worker that has a process or shall have one.

    Args:
        state: what the agent knows.
        letters: worker -> the kernel's state letter of its process.
        addresses: worker -> where it takes part in the ring.
        address: of this node.
        version: of this program.
        since: seconds since the epoch when the agent began.
    """
    health, reason = _agent(state)
    agent = Entry(
        kind="agent",
        name=state.node,
        id=f"{state.node}/{state.pid}",
        node=state.node,
        job=state.job,
        address=address,
        version=version,
        pid=state.pid,
        health=health,
        reason=reason[:_TEXT],
        since=since,
    )
    workers = [
        _worker(state, place, letters.get(place.worker, ""), addresses.get(place.worker, ""), version)
        for place in state.places
        if place.busy
    ]
    return agent, *workers


def _agent(state: State) -> tuple[Health, str]:
    if state.unreaped:
        return "warning", f"even SIGKILL did not end PID {', '.join(map(str, state.unreaped))}"
    match state.mode:
        case "starting":
            return "warning", "the log is being read"
        case "draining":
            return "warning", f"drains: {state.why}" if state.why else "drains"
        case "failing":
            return "critical", state.why or "the run failed"
    if state.held_why:
        return "warning", f"kept out: {state.held_why}"
    busy = sum(place.living for place in state.places)
    return "passing", f"{busy} of {state.target} workers"


def _worker(state: State, place: Place, letter: str, address: str, version: str) -> Entry:
    health, reason = _of(place, letter)
    return Entry(
        kind="worker",
        name=place.worker,
        id=f"{place.worker}/{place.incarnation}",
        node=state.node,
        job=state.job,
        address=address if place.registered else "",
        version=version,
        pid=place.pid if place.living else 0,
        health=health,
        reason=reason[:_TEXT],
    )


def _of(place: Place, letter: str) -> tuple[Health, str]:  # noqa: PLR0911 - a table
    """How well a worker is: what its process does, and what the log says of it."""
    if place.refused:
        return "critical", f"refused: {place.refused}"
    if place.error:
        return "critical", f"its script raised {place.error}"
    if place.phase == "waiting":
        again = f", {place.failures} failures in a row" if place.failures else ""
        return "warning", f"waits to be started{again}"
    if place.stillness.said and letter in MEANING:
        return "critical", f"{MEANING[letter]} ({letter})"
    if place.phase in {"ending", "killed"}:
        return "warning", f"is being ended: {place.why}" if place.why else "is being ended"
    if place.finished:
        return "passing", "has finished"
    if place.evicted_at is not None:
        return "warning", "not in the world: it has a while to come back"
    if not place.registered:
        return "warning", "starting"
    if place.leaving:
        return "warning", "leaves as asked"
    return "passing", "member" if place.member else "not in the world yet"
