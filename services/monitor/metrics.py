"""The figures for Prometheus, made from the views at the moment of the scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from reknit.core.status import Status, report

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FIGURES = (
    ("committed_steps", "progress", "committed", "Committed steps of the run."),
    ("steps", "progress", "steps", "Steps of the whole run, 0 if not known."),
    ("epoch", "progress", "epoch", "Epoch in progress."),
    ("loss", "progress", "loss", "Global mean loss of the newest step."),
    ("loss_finite", "progress", "loss_finite", "1 while the loss is finite."),
    ("samples_per_second", "progress", "rate", "Samples a second of the whole job."),
    ("step_seconds", "progress", "step_seconds", "Seconds a step, recent mean."),
    ("slots_computed_again", "progress", "computed_again", "Slots computed again after deaths."),
    ("generation", "world", "generation", "Number of the present world."),
    ("world_size", "world", "size", "Members of the present world."),
    ("restarts", "world", "restarts", "Restarts after failures, job-wide."),
    ("checkpoint_step", "checkpoint", "step", "Step of the newest checkpoint, -1: none."),
)
"""Name, place in the report (section, field), help."""
STATES = ("starting", "running", "degraded", "paused", "stopping", "finishing", "completed", "failed", "stopped")


class Figures(Collector):
    """All jobs of one monitor.

    Args:
        statuses: gives the present status of each job.
        clock: monotonic seconds.
    """

    def __init__(self, statuses: Callable[[], Mapping[str, Status]], clock: Callable[[], float]) -> None:
        self._statuses = statuses
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """Yield one family after another."""
        statuses = self._statuses()
        reports = {job: report(status, self._clock()) for job, status in statuses.items()}
        yield from _of_jobs(statuses, reports)
        yield from _of_workers(reports)

    def page(self) -> bytes:
        """Return the text that a scrape gets."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


def _of_jobs(statuses: Mapping[str, Status], reports: Mapping[str, dict[str, Any]]) -> Iterable[Metric]:
    for name, section, field, text in FIGURES:
        family = GaugeMetricFamily(f"reknit_{name}", text, labels=["job"])
        for job, plain in reports.items():
            figure = plain[section][field]
            if figure is not None:
                family.add_metric([job], float(figure))
        yield family
    state = GaugeMetricFamily("reknit_job_state", "1 for the state that the job is in.", labels=["job", "state"])
    alerts = GaugeMetricFamily("reknit_alerts", "Raised alerts.", labels=["job", "alert", "severity"])
    for job, status in statuses.items():
        for name in STATES:
            state.add_metric([job, name], float(status.state == name))
        for (alert, severity), count in Counter((a.alert, a.severity) for a in status.alerts.values()).items():
            alerts.add_metric([job, alert, severity], count)
    yield state
    yield alerts


def _of_workers(reports: Mapping[str, dict[str, Any]]) -> Iterable[Metric]:
    counts = GaugeMetricFamily("reknit_workers", "Workers by state.", labels=["job", "state"])
    families = {
        "rss": GaugeMetricFamily("reknit_worker_rss_bytes", "Resident memory.", labels=["job", "worker"]),
        "compute_seconds": GaugeMetricFamily(
            "reknit_worker_compute_seconds", "Own compute seconds a slot.", labels=["job", "worker"]
        ),
        "slots": GaugeMetricFamily("reknit_worker_slots", "Slots a step.", labels=["job", "worker"]),
        "silent": GaugeMetricFamily(
            "reknit_worker_silent_seconds", "Seconds since the newest heartbeat.", labels=["job", "worker"]
        ),
    }
    for job, plain in reports.items():
        workers = plain["workers"]
        for name, count in sorted(Counter(worker["state"] for worker in workers).items()):
            counts.add_metric([job, name], count)
        for worker in workers:
            if worker["state"] in ("dead", "finished", "lost"):
                continue
            for field, family in families.items():
                if worker.get(field) is not None:
                    family.add_metric([job, worker["worker"]], worker[field])
    yield counts
    yield from families.values()
