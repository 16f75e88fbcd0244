"""Where an agent's gossip listens, and how it gets to know others without a broker: real sockets, one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from reknit.core.address import join, split
from reknit.core.context import AgentContext, Endpoint
from reknit.core.discovery.names import resolve
from reknit.worker.agent.gossiping import Gossiping
from support.buses import until
from support.ipv6 import ipv6_here


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def gossiping(node: str, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[tuple[Gossiping, str]]:
    """A node's gossip, and what went wrong when it began."""
    context = AgentContext(
        endpoint=Endpoint(url="nats://unused:1"),
        job="j",
        run="r",
        node=node,
        nproc=1,
        script="s",
        secret="s",
        gossip="fast",
    )
    gossip = Gossiping.of(context, lambda _happening: None)
    assert gossip is not None
    trouble = await gossip.open(host, port)
    gossip.begin(1)
    try:
        yield gossip, trouble
    finally:
        gossip.close()
        await asyncio.sleep(0)


def alive(gossip: Gossiping) -> set[str]:
    assert gossip.core is not None
    return set(gossip.core.alive())


async def test_the_port_that_was_asked_for() -> None:
    port = free_port()
    async with gossiping("a", port=port) as (first, trouble):
        assert (first.address, trouble) == (f"127.0.0.1:{port}", "")
        async with gossiping("b", port=port) as (second, said):
            assert f"not on port {port} as asked: Address already in use" in said
            assert split(second.address)[1] not in {0, port}


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not ipv6_here(), reason="no ::1"))]
)
async def test_nodes_meet_through_a_seed(host: str) -> None:
    async with (
        gossiping("a", host) as (first, _),
        gossiping("b", host) as (second, _),
        gossiping("c", host) as (third, _),
    ):
        seed = join("localhost" if host == "127.0.0.1" else host, split(first.address)[1])
        addresses, trouble = await resolve([seed, "no-such-host.invalid:1"])
        assert len(trouble) == 1
        second.meet(addresses)
        third.meet(addresses)
        for gossip in (first, second, third):
            await until(lambda gossip=gossip: alive(gossip) == {"a", "b", "c"})  # type: ignore[misc]
