"""How the agent's events go out: what tells of a death carries the trace of the change that it causes."""

from __future__ import annotations

from reknit.core import telemetry
from reknit.core.bus import Bus
from reknit.core.events import WorkerDying, WorkerExited

from .actions import Post


class Telling:
    """Posts events; the first evidence of a death opens a trace, the exit that follows joins it."""

    def __init__(self) -> None:
        self._opened: dict[tuple[str, int], str] = {}
        """(worker, pid) -> traceparent, from the first word of its death to its exit."""

    def post(self, bus: Bus, job: str, action: Post) -> None:
        """Put an event into the outbox."""
        match action.event:
            case WorkerDying(worker=worker, pid=pid):
                with telemetry.tracer().start_as_current_span("agent.worker_dying") as span:
                    span.set_attribute("worker", worker)
                    trace = self._opened[worker, pid] = telemetry.inject()
                    bus.post(job, action.event, id=action.id, trace=trace)
            case WorkerExited(worker=worker, pid=pid, code=code, expected=expected):
                opened = self._opened.pop((worker, pid), "")
                if expected and not opened:
                    bus.post(job, action.event, id=action.id)
                    return
                context = telemetry.context_from(opened)
                with telemetry.tracer().start_as_current_span("agent.worker_exited", context) as span:
                    span.set_attributes({"worker": worker, "code": code})
                    bus.post(job, action.event, id=action.id, trace=telemetry.inject())
            case event:
                bus.post(job, event, id=action.id)
