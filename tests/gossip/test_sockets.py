"""A hundred gossip cores in one process, on real UDP sockets of the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from reknit.core.address import split
from reknit.gossip.keyring import Keyring
from reknit.gossip.preset import FAST, TRAIN, Preset
from reknit.gossip.tally import count, observers
from reknit.worker.agent import gossiping
from reknit.worker.agent.gossiping import Gossiping

KEY = bytes(range(32))


async def until(holds: Callable[[], bool], what: str) -> None:
    """Poll until it holds."""
    for _ in range(1200):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"never came true: {what}")


async def crowd(size: int, preset: Preset) -> dict[str, Gossiping]:
    nodes: dict[str, Gossiping] = {}
    for i in range(size):
        node = Gossiping(f"n{i}", preset, keyring=Keyring((KEY,)), keys=None, changed=lambda _: None)
        assert await node.open("127.0.0.1") == ""
        node.begin(1)
        node.meet([split(nodes["n0"].address)] if nodes else [])
        nodes[f"n{i}"] = node
    return nodes


def agree(nodes: dict[str, Gossiping]) -> bool:
    return all(n.core is not None and set(n.core.alive()) == set(nodes) for n in nodes.values())


def abort(node: Gossiping) -> None:
    """End it without a word, as a host that goes."""
    assert node._transport is not None
    node._transport.abort()
    node._transport = None
    if node._alarm is not None:
        node._alarm.cancel()


def test_a_hundred_nodes_find_each_other_miss_ten_and_forget_them() -> None:
    async def play() -> None:
        nodes = await crowd(100, FAST)
        try:
            await until(lambda: agree(nodes), "all know all")
            watched = observers(nodes, FAST)
            await asyncio.sleep(2 * FAST.silence)  # subjects that came late have answered
            lost = {f"n{i}" for i in range(3, 100, 10)}
            for name in lost:
                abort(nodes.pop(name))

            def out() -> set[str]:
                said = {name: node.report()["silent"] for name, node in nodes.items()}
                return set(count(said, watched, FAST).out)

            await until(lambda: out() == lost, "the lost are out of reach, and nobody else")
            await until(lambda: agree(nodes), "all know that they are gone")
        finally:
            for node in nodes.values():
                node.close()

    asyncio.run(play())


def test_leaving_is_told_at_once() -> None:
    async def play() -> None:
        nodes = await crowd(5, TRAIN)
        try:
            await until(lambda: agree(nodes), "all know all")
            nodes.pop("n2").close()
            await until(lambda: agree(nodes), "all know that it left")
        finally:
            for node in nodes.values():
                node.close()

    asyncio.run(play())


def test_garbage_strangers_and_echoes_do_no_harm() -> None:
    async def play() -> None:
        nodes = await crowd(3, FAST)
        try:
            await until(lambda: agree(nodes), "all know all")
            stranger = Gossiping("x", FAST, keyring=Keyring((bytes(32),)), keys=None, changed=lambda _: None)
            assert await stranger.open("127.0.0.1") == ""
            stranger.begin(1)
            stranger.meet([split(n.address) for n in nodes.values()])
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as raw:
                for size in (0, 1, 4, 48, 1400, 9000):
                    for node in nodes.values():
                        raw.sendto(os.urandom(size), split(node.address))
            target = nodes["n0"]
            await until(lambda: target.dropped >= 6, "they were dropped")
            assert agree(nodes)
            stranger.close()
        finally:
            for node in nodes.values():
                node.close()

    asyncio.run(play())


def test_keys_are_changed_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gossiping, "KEYS_EVERY", 0.05)
    old, new = bytes(32).hex(), KEY.hex()

    async def play() -> None:
        files = [tmp_path / "a", tmp_path / "b"]
        nodes: dict[str, Gossiping] = {}
        for file in files:
            file.write_text(old + "\n")
            ring = Keyring((bytes(32),))
            node = Gossiping(file.name, FAST, keyring=ring, keys=file, changed=lambda _: None)
            assert await node.open("127.0.0.1") == ""
            node.begin(1)
            nodes[file.name] = node
        a, b = nodes["a"], nodes["b"]
        b.meet([split(a.address)])
        try:
            await until(lambda: agree(nodes), "both know both")
            for step in (f"{old}\n{new}\n", f"{new}\n{old}\n", f"{new}\n"):
                for file, node in zip(files, (a, b), strict=True):
                    file.write_text(step)
                    wanted = tuple(bytes.fromhex(k) for k in step.split())
                    await until(lambda n=node, w=wanted: n._sealer.keyring.keys == w, "the file is read")
                    await asyncio.sleep(FAST.silence + 2 * FAST.interval)
                    assert not a.report()["silent"]
                    assert not a.report()["sick"]
            files[0].write_text("no key at all\n")
            await asyncio.sleep(0.2)
            assert a._sealer.keyring.keys == (KEY,)  # the keys stay as they were
            assert a.dropped == b.dropped == 0
        finally:
            for node in nodes.values():
                node.close()

    asyncio.run(play())


def test_ipv6() -> None:
    with contextlib.closing(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this host has no IPv6 loopback")

    async def play() -> None:
        nodes: dict[str, Gossiping] = {}
        for name in ("a", "b"):
            node = Gossiping(name, FAST, keyring=Keyring((KEY,)), keys=None, changed=lambda _: None)
            assert await node.open("::1") == ""
            node.begin(1)
            nodes[name] = node
        nodes["a"].meet([split(nodes["b"].address)])
        try:
            await until(lambda: agree(nodes), "both know both")
        finally:
            for node in nodes.values():
                node.close()

    asyncio.run(play())


def test_a_host_that_is_not_ours_is_said_and_nothing_else_happens() -> None:
    async def play() -> str:
        node = Gossiping("a", FAST, keyring=Keyring((KEY,)), keys=None, changed=lambda _: None)
        said = await node.open("192.0.2.1")
        node.begin(1)
        node.meet([("127.0.0.1", 9)])
        assert node.report() == {}
        node.close()
        return said

    assert "192.0.2.1" in asyncio.run(play())
