"""The monitor as a process over a real broker: alerts, status answer, page, figures, webhook."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reknit.core.bus import Bus, Received
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable
from reknit.core.events import Alert, CheckpointFailed, JobSubmitted, StepsCommitted, Terms, WorkerPulse, WorkerStuck
from reknit.core.plan import split
from support.buses import Broker, joined, until
from support.history import member, registered, world
from support.service_process import ServiceProcess, ready

TERMS = Terms(slots=4, micro_batch=5, samples=100, epochs=2, seed=1)
STUCK = WorkerStuck(worker="b", incarnation=1, node="n", state="T stopped")
RUNS = WorkerStuck(worker="b", incarnation=1, node="n", state="R running")


async def begin(bus: Bus, job: str = "j", **spec: Any) -> None:
    await bus.publish(job, JobSubmitted(run="r1", script="t.py", max_nodes=2, **spec))
    for worker in "ab":
        await bus.publish(job, registered(worker, TERMS))
    await bus.publish(job, world(1, member("a"), member("b")))


async def beat(bus: Bus, committed: int = 3, job: str = "j") -> None:
    for worker in "ab":
        pulse = WorkerPulse(
            worker=worker,
            incarnation=1,
            generation=1,
            step=committed,
            committed=committed,
            phase="reduce",
            rate=123.0,
            step_seconds=0.05,
            compute_seconds=0.01,
            slots=2,
            loss=0.25,
            rss=1 << 20,
        )
        await bus.beat(job, pulse)


@contextlib.asynccontextmanager
async def beating(bus: Bus) -> AsyncIterator[None]:
    async def on() -> None:
        while True:
            await beat(bus)
            await asyncio.sleep(0.25)

    task = asyncio.create_task(on())
    try:
        yield
    finally:
        task.cancel()


async def answers(http: httpx.AsyncClient, code: int) -> None:
    """Return once `/readyz` answers with this code."""
    for _ in range(1000):
        if (await http.get("/readyz")).status_code == code:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"/readyz did not answer {code}")


async def test_killed_in_the_middle_it_raises_and_clears_once(endpoint: Endpoint) -> None:
    heard: list[Received] = []
    async with joined(endpoint) as bus:
        await bus.follow(heard.append, job="j", areas=["monitor"])

        def states() -> list[tuple[str, str, int]]:
            return [(a.alert, a.state, a.number) for r in heard if isinstance(a := r.event, Alert)]

        raised, cleared = ("worker-stuck", "raised", 1), ("worker-stuck", "cleared", 1)
        with ServiceProcess("monitor", endpoint) as monitor:
            await begin(bus)
            async with beating(bus):
                await bus.publish("j", STUCK)
                await until(lambda: states() == [raised], "the alert")
                assert heard[0].id == "alert/j/worker-stuck/b/1/raised"
                for _ in range(2):
                    monitor.kill()
                    monitor.start()
                    await ready(bus, "monitor", monitor.pid)
                    await bus.publish("j", STUCK)
                monitor.kill()
                await bus.publish("j", RUNS)
                monitor.start()
                await until(lambda: states() == [raised, cleared], "that it is over")
                await bus.publish("j", CheckpointFailed(checkpoint="c", reason="disk full"))
                await until(lambda: len(states()) == 3, "the next alert")
                assert states() == [raised, cleared, ("checkpoint-failed", "raised", 1)]
                assert monitor.terminate() == 0


async def test_two_monitors_say_each_thing_once(endpoint: Endpoint) -> None:
    heard: list[Received] = []
    async with joined(endpoint) as bus:
        await bus.follow(heard.append, job="j", areas=["monitor"])
        with ServiceProcess("monitor", endpoint) as one, ServiceProcess("monitor", endpoint) as two:
            await begin(bus)
            for monitor in (one, two):
                await ready(bus, "monitor", monitor.pid)
            for n in range(1, 3):
                await bus.publish("j", STUCK)
                await until(lambda n=n: len(heard) == 2 * n - 1, "raised")
                await bus.publish("j", RUNS)
                await until(lambda n=n: len(heard) == 2 * n, "cleared")
        assert [(r.event.state, r.event.number) for r in heard] == [
            ("raised", 1),
            ("cleared", 1),
            ("raised", 2),
            ("cleared", 2),
        ]


async def test_status_page_figures_and_health(endpoint: Endpoint, tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    with ServiceProcess("monitor", endpoint, REKNIT_MONITOR_PORT_FILE=str(port_file)) as monitor:
        async with joined(endpoint) as bus, beating(bus):
            await begin(bus)
            answer = await ready(bus, "monitor", monitor.pid)
            await until(port_file.exists, "the port file")
            assert int(port_file.read_text()) == answer["port"]
            await bus.publish(
                "j",
                StepsCommitted(run="r1", first=0, last=2, generation=1, ranges=split(4, ["a", "b"]), slots=4, loss=0.5),
            )
            await bus.publish("j", STUCK)
            status: dict[str, Any] = {}
            while status.get("alerts", []) == [] or status["progress"]["loss"] != 0.25:
                status = json.loads(await bus.request("monitor", "status", b"j"))
            assert status["state"] == "degraded"
            assert status["world"]["members"] == ["a", "b"]
            assert status["progress"]["committed"] == 3
            assert status["progress"]["steps"] == 10
            assert {"worker", "phase", "step", "rate", "rss", "loss", "node"} <= set(status["workers"][0])
            unknown = json.loads(await bus.request("monitor", "status", b"other"))
            assert unknown == {"job": "other", "state": "unknown", "known": ["j"]}

            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{answer['port']}") as http:
                assert (await http.get("/livez")).status_code == 200
                assert (await http.get("/readyz")).status_code == 200
                page = await http.get("/")
                assert "EventSource" in page.text
                assert "http://" not in page.text.replace("http://www.w3.org/2000/svg", "")
                assert "default-src 'none'" in page.headers["content-security-policy"]
                figures = (await http.get("/metrics")).text
                for line in (
                    'reknit_committed_steps{job="j"} 3.0',
                    'reknit_world_size{job="j"} 2.0',
                    'reknit_generation{job="j"} 1.0',
                    'reknit_loss{job="j"} 0.25',
                    'reknit_samples_per_second{job="j"} 123.0',
                    'reknit_workers{job="j",state="active"} 2.0',
                    'reknit_alerts{alert="worker-stuck",job="j",severity="warning"} 1.0',
                    'reknit_job_state{job="j",state="degraded"} 1.0',
                ):
                    assert line in figures
                assert (await http.get("/else")).status_code == 404
                async with http.stream("GET", "/stream?job=j") as stream:
                    lines = stream.aiter_lines()
                    first = await anext(lines)
                    shown = json.loads(first.removeprefix("data: "))
                    assert shown["jobs"] == [{"job": "j", "state": "degraded"}]
                    assert shown["shown"]["losses"] == [[2, 0.5]]
                    await bus.publish("j", RUNS)
                    async for line in lines:
                        if line.startswith("data: ") and '"state": "running"' in line:
                            break
                    # an open stream does not hold up the end
                    assert await asyncio.to_thread(monitor.terminate) == 0


async def test_it_is_not_ready_while_the_broker_is_away_and_hears_again_afterwards(
    endpoint: Endpoint, broker: Broker
) -> None:
    heard: list[Received] = []
    with ServiceProcess("monitor", endpoint) as monitor:
        async with joined(endpoint) as bus:
            await bus.follow(heard.append, job="j", areas=["monitor"])
            answer = await ready(bus, "monitor", monitor.pid)
            await begin(bus)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{answer['port']}") as http:
                await answers(http, 200)
                broker.kill()
                await answers(http, 503)
                assert (await http.get("/livez")).status_code == 200
                assert (await http.get("/")).status_code == 200
                await asyncio.to_thread(broker.start)
                await answers(http, 200)
            await bus.publish("j", STUCK)
            await until(lambda: any(r.event.alert == "worker-stuck" for r in heard), "the alert")


class Ear:
    """A web server that hears posts, and refuses the first ones."""

    def __init__(self, refuse: int) -> None:
        self.refuse = refuse
        self.tries: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    async def __aenter__(self) -> Ear:
        self.server = await asyncio.start_server(self._hear, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/hook"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
        body = await reader.readexactly(int(fields["content-length"]))
        self.tries.append(fields["idempotency-key"])
        ok = len(self.tries) > self.refuse
        if ok:
            self.bodies.append(json.loads(body))
        says = "204 No Content" if ok else "503 Busy"
        writer.write(f"HTTP/1.1 {says}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()


async def test_the_webhook_is_told_once_though_it_refuses_at_first(endpoint: Endpoint) -> None:
    async with Ear(refuse=2) as ear, joined(endpoint) as bus:
        with ServiceProcess("monitor", endpoint, REKNIT_ALERT_WEBHOOK=ear.url) as monitor:
            await ready(bus, "monitor", monitor.pid)
            await begin(bus)
            await bus.publish("j", STUCK)
            await until(lambda: len(ear.bodies) == 1, "the post")
            await bus.publish("j", RUNS)
            await until(lambda: len(ear.bodies) == 2, "the second post")
            assert [b["state"] for b in ear.bodies] == ["raised", "cleared"]
            assert ear.bodies[0]["reason"].endswith("does not run: T stopped")
            assert len(set(ear.tries[:3])) == 1


async def test_a_webhook_that_is_away_holds_nothing_up(endpoint: Endpoint) -> None:
    heard: list[Received] = []
    async with joined(endpoint) as bus:
        await bus.follow(heard.append, job="j", areas=["monitor"])
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
            with ServiceProcess("monitor", endpoint, REKNIT_ALERT_WEBHOOK=url):
                await begin(bus)
                for n in range(1, 4):
                    await bus.publish("j", STUCK if n % 2 else RUNS)
                    await until(lambda n=n: len(heard) == n, "the alert")


async def test_a_taken_port_is_named_and_the_monitor_works_without_a_page(
    endpoint: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        async with joined(endpoint) as bus:
            with ServiceProcess("monitor", endpoint, REKNIT_MONITOR_PORT=str(port)) as monitor:
                answer = await ready(bus, "monitor", monitor.pid)
                assert "port" not in answer
                await begin(bus)
                assert json.loads(await bus.request("monitor", "status", b"j"))["job"] == "j"
    assert f"cannot listen on 127.0.0.1:{port}" in (said := capfd.readouterr().err)
    assert "REKNIT_MONITOR_PORT" in said


async def test_a_bad_webhook_address_ends_it_with_a_sentence(
    endpoint: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    with ServiceProcess("monitor", endpoint, REKNIT_ALERT_WEBHOOK="ftp://x") as monitor:
        assert monitor._process is not None
        assert await asyncio.to_thread(monitor._process.wait, 20) == 2
    said = capfd.readouterr().err
    assert "REKNIT_ALERT_WEBHOOK is 'ftp://x'" in said
    assert "Traceback" not in said
    async with joined(endpoint) as bus:
        with pytest.raises(ControlPlaneUnreachable):
            await bus.request("monitor", "status", b"j", timeout=0.2)
