"""The monitor is stopped and somebody floods the broker, while workers die: nothing of the log is lost to anybody.

`pytest -m slow tests/breaks/test_flood.py`
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from pathlib import Path

import msgspec
import nats
import pytest

from reknit.core.context import Endpoint
from support.agents import until
from support.launchers import Place
from support.trainings import SCRIPT, Notes, calm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

JUNK = 100_000


def flood(endpoint: Endpoint, subject: str, count: int) -> None:
    """Publish junk as fast as the broker takes it."""

    async def run() -> None:
        client = await nats.connect(endpoint.url, user=endpoint.user, password=endpoint.password)
        for i in range(count):
            await client.publish(subject, b"\xc1junk" * 20)
            if i % 1000 == 0:
                await client.flush(30)
        await client.drain()

    asyncio.run(run())


def kinds(place: Place) -> list[tuple[str, dict[str, object]]]:
    return [(row["event"]["kind"], row["event"]) for row in place.json("events", "--job", "t")]


@pytest.mark.parametrize("subject", ["reknit.t.heartbeat.n-0", "live.reknit.t.world.changed"])
def test_a_flood_while_the_monitor_stands_still(place: Place, subject: str) -> None:
    steps = place.folder / "steps"
    steps.mkdir()
    script = place.script("train.py", SCRIPT)
    flags = ("--job", "t", "--node", "n", "--nproc-per-node", "3")
    run = place.start("run", *flags, str(script), str(steps), "0.02", "100", "-1")
    notes = Notes(steps)
    until(lambda: len({s.worker for s in notes.read()}) == 3, "all three train", 90.0)
    endpoint = msgspec.json.decode((place.home / "jobs/t/endpoint.json").read_bytes(), type=Endpoint)
    monitor = place.pids("reknit.services.monitor")
    for pid in monitor:
        os.kill(pid, signal.SIGSTOP)
    noise = threading.Thread(target=flood, args=(endpoint, subject, JUNK))
    noise.start()
    try:
        for victim in ("n-1", "n-2"):
            pids = {s.worker: s.pid for s in notes.read()}
            os.kill(pids[victim], signal.SIGKILL)
            until(
                lambda victim=victim, old=pids[victim]: any(
                    s.worker == victim and s.pid != old and s.slots for s in notes.read()[-200:]
                ),
                f"{victim} is replaced and computes",
                90.0,
            )
    finally:
        noise.join()
        for pid in monitor:
            with contextlib.suppress(ProcessLookupError):  # a service that stands still for long is started anew
                os.kill(pid, signal.SIGCONT)
    deaths = [e for k, e in kinds(place) if k == "world.changed" and e["removed"]]
    assert [e["removed"] for e in deaths] == [["n-1"], ["n-2"]]

    # what was over when it came back is no alert any more; what happens from now on is
    log = place.home / "jobs/t/logs/monitor.log"
    ready = 1 if place.pids("reknit.services.monitor") == monitor else 2
    until(lambda: log.read_text(errors="replace").count(" ready ") >= ready, "a monitor that has read the log", 90.0)
    dead = {s.worker: s.pid for s in notes.read()}["n-0"]
    os.kill(dead, signal.SIGKILL)

    def told() -> bool:
        alerts = [e for k, e in kinds(place) if k == "monitor.alert" and e["state"] == "raised"]
        return any(e["subject"] == "n-0" for e in alerts)

    until(told, "the monitor sees a death", 90.0)
    (steps / "go").touch()
    assert run.wait(120.0) == 0, run.shown
    assert place.json("ledger", "verify", "--job", "t")["ok"]
    done = notes.read()
    expected = calm(Path(place.folder) / "calm", max(s.step for s in done) + 1)
    assert all(s.digest == expected[s.step] for s in done)
    place.nothing_left()
