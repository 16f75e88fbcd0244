"""Looking at a job: which one is meant, and its log by whatever way there is.

Used like this: `async with looking(settings, name) as look: log = await look.log()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence

from reknit.core.bus import Bus, Received
from reknit.core.errors import ControlPlaneUnreachable, UsageError
from reknit.core.events import AnyPulse, JobFinished, JobSubmitted, WorkerPulse
from reknit.core.home import Home, JobFolder
from reknit.core.settings import Settings, nearest

from . import control, output

SOURCE = "cli"
ANSWER = 0.4
"""Seconds that a node's launcher gets to say that it is there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """One job within reach.

    Attributes:
        live: False: the broker was started only to read.
    """

    bus: Bus
    job: str
    folder: JobFolder
    home: Home
    live: bool

    async def log(self, areas: Sequence[str] | None = None) -> list[Received]:
        """All stored events of the job, in order."""
        return await self.bus.backlog(job=self.job, areas=areas)

    async def pulses(self, seconds: float) -> list[AnyPulse]:
        """The newest heartbeat of each member that is heard within so many seconds; none if nothing is live."""
        newest: dict[str, AnyPulse] = {}
        if self.live:
            # a heartbeat comes four times a second
            await self.bus.pulses(lambda _job, pulse: newest.update({_member(pulse): pulse}), job=self.job)
            await asyncio.sleep(seconds)
        return list(newest.values())

    async def alive(self, nodes: Sequence[str]) -> set[str]:
        """Which of these nodes have a launcher that answers."""
        return await answering(self.bus, self.job, nodes) if self.live else set()


def _member(pulse: AnyPulse) -> str:
    return f"worker/{pulse.worker}" if isinstance(pulse, WorkerPulse) else f"node/{pulse.node}"


def run_service(job: str) -> str:
    """Name under which the launchers of a job answer; the verb is the node's name."""
    return f"run-{job}"


async def answering(bus: Bus, job: str, nodes: Sequence[str]) -> set[str]:
    """Which of these nodes have a launcher that answers."""

    async def asks(node: str) -> bool:
        try:
            await bus.request(run_service(job), node, timeout=ANSWER)
        except ControlPlaneUnreachable:
            return False
        return True

    answers = await asyncio.gather(*(asks(node) for node in nodes))
    return {node for node, there in zip(nodes, answers, strict=True) if there}


@contextlib.asynccontextmanager
async def looking(settings: Settings) -> AsyncIterator[Look]:
    """Reach the job that is meant: the one named, else the most recent one (said on stderr).

    Raises:
        UsageError: there is no such job; the hint lists those that are known.
        ControlPlaneUnreachable: its broker does not answer.
    """
    home = Home.at(settings.control.home)
    name = settings.job.job
    if settings.control.nats:
        async with _connected(
            control.Way(control.given(settings.control.nats, settings.control.nats_replicas), live=True)
        ) as bus:
            job = await _on_broker(bus, name)
            yield Look(bus, job, home.job(job), home, live=True)
        return
    folder = _folder(home, name)
    if folder is None:
        endpoint = home.up.endpoint()
        if endpoint is None:
            raise unknown(name, [job.name for job in home.jobs()])
        async with _connected(control.Way(endpoint, live=True)) as bus:
            job = await _on_broker(bus, name)
            yield Look(bus, job, home.job(job), home, live=True)
        return
    with control.reading(home, folder) as way:
        async with _connected(way) as bus:
            yield Look(bus, folder.name, folder, home, live=way.live)


def folder_of(settings: Settings) -> JobFolder:
    """The folder of the job that is meant, for verbs that read what lies on this machine.

    With `nats` the broker says which job is meant, unless it is named and known here and no flag says otherwise.

    Raises:
        UsageError: there is none; the hint lists those that are known.
        ControlPlaneUnreachable: the broker that was given does not answer.
    """
    if asks_broker(settings):
        return asyncio.run(_folder_on_broker(settings))
    return folder_here(Home.at(settings.control.home), settings.job.job)


def asks_broker(settings: Settings) -> bool:
    """True if a broker that is given has to say which job is meant, and where its checkpoints are."""
    if not settings.control.nats:
        return False
    known = bool(settings.job.job) and Home.at(settings.control.home).job(settings.job.job).path.is_dir()
    return not known or settings.sources["nats"].startswith("flag")


async def _folder_on_broker(settings: Settings) -> JobFolder:
    async with looking(settings) as look:
        return look.folder


def folder_here(home: Home, name: str) -> JobFolder:
    """The folder of the job that is meant, for verbs that read only what lies on this machine.

    Raises:
        UsageError: there is none; the hint lists those that are known.
    """
    known = home.jobs()
    if name:
        folder = home.job(name)
        if not folder.path.is_dir():
            raise unknown(name, [job.name for job in known])
        return folder
    if not known:
        raise UsageError("no job was run here yet", hint="start one with: reknit run script.py")
    output.note(f"job {known[0].name}")
    return known[0]


def _folder(home: Home, name: str) -> JobFolder | None:
    """The job's folder here; None: it can only be a job of others on the broker of `reknit up`."""
    if home.up.controlled and (not home.job(name).path.is_dir() if name else not home.jobs()):
        return None
    return folder_here(home, name)


async def _on_broker(bus: Bus, name: str) -> str:
    """The job that is meant among those in a broker's log, most recently submitted last."""
    known: dict[str, None] = {}
    for received in await bus.backlog(areas=["job"]):
        if isinstance(received.event, JobSubmitted | JobFinished):
            known.pop(received.job, None)
            known[received.job] = None
    if name:
        if name not in known:
            raise unknown(name, list(known))
        return name
    if not known:
        raise UsageError("no job was ever submitted to this broker", hint="start one with: reknit run script.py")
    newest = list(known)[-1]
    output.note(f"job {newest}")
    return newest


def unknown(name: str, known: Sequence[str]) -> UsageError:
    """The error for a job that does not exist."""
    if not known:
        return UsageError(f"there is no job {name!r}", hint="no job was run here yet")
    like = nearest(name, list(known))
    shown = ", ".join(known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
    return UsageError(
        f"there is no job {name!r}", hint=(f"did you mean {like!r}? " if like else "") + f"known jobs: {shown}"
    )


@contextlib.asynccontextmanager
async def _connected(way: control.Way) -> AsyncIterator[Bus]:
    bus = await Bus.connect(way.endpoint, source=SOURCE, timeout=5.0)
    try:
        yield bus
    finally:
        await bus.close()
