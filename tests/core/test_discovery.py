"""Lists of hosts from real scripts and files, names from the real resolver; what goes wrong loses nothing."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import psutil
import pytest

from reknit.core import labels
from reknit.core.discovery import host_list, names, source
from reknit.core.discovery.match import Listed, unresolved
from reknit.core.discovery.reading import read
from reknit.core.discovery.source import Source
from reknit.core.discovery.watch import Watch
from reknit.core.errors import UsageError
from reknit.core.events import ListedHost


def script(folder: Path, body: str, name: str = "hosts.sh") -> Source:
    path = folder / name
    fresh = folder / f".{name}"
    fresh.write_text(f"#!/bin/sh\n{body}\n")
    fresh.chmod(0o755)
    fresh.replace(path)
    return Source("script", str(path))


def listing(folder: Path, text: str) -> Source:
    path = folder / "hosts"
    path.write_text(text)
    return Source("file", str(path))


# --------------------------------------------------------------------------------------------------------------- lines


def test_lines_of_a_list() -> None:
    text = "n1:4\n\n  n2  # in repair until Monday\n# n3\n10.0.0.7:2\n[fd00::7]:8\nfd00:0::8\n[fd00::9]\n"
    assert host_list.parse(text) == {"n1": 4, "n2": 0, "10.0.0.7": 2, "fd00::7": 8, "fd00::8": 0, "fd00::9": 0}


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("n1\nn2:\n", 2, "'' is no number"),
        ("n1:x", 1, "'x' is no number"),
        ("n1:0", 1, "'0' is no number"),
        ("n1:99999", 1, "no number of workers"),
        ("n1:-2", 1, "no number"),
        ("n1 4", 1, "'n1 4' is no name"),
        ("n1\n\n;n2", 3, "no name of a host"),
        ("-n1", 1, "no name of a host"),
        ("n1\nn2\nn1:3", 3, "n1 is there twice"),
        ("[fd00::1", 1, "the bracket is not closed"),
        ("fd00:zz::1", 1, "no IPv6 address"),
        ("::1\n0::1", 2, "there twice"),
        ("Traceback (most recent call last):", 1, "number of workers|no name"),
    ],
)
def test_a_bad_line_is_named(text: str, line: int, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        host_list.parse(text)
    assert f"line {line} " in str(caught.value)
    assert "HOST:SLOTS" in caught.value.hint


def test_an_empty_list_is_no_list() -> None:
    with pytest.raises(UsageError, match="empty"):
        host_list.parse("# nothing\n\n")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("dns:train.example.org", Source("dns", "train.example.org", source.GOSSIP_PORT)),
        ("dns:train.example.org:99", Source("dns", "train.example.org", 99)),
        ("dns:[::1]:99", Source("dns", "::1", 99)),
        ("script:/usr/bin/hosts", Source("script", "/usr/bin/hosts")),
        ("file:/etc/my:hosts", Source("file", "/etc/my:hosts")),
    ],
)
def test_ways_to_find_nodes(text: str, found: Source) -> None:
    assert source.parse(text) == found
    assert source.parse(str(found)) == found


@pytest.mark.parametrize("text", ["", "consul:x", "dns:", "file:", "dns:a b", "dns:x:0", "/etc/hosts"])
def test_what_is_no_way_to_find_nodes(text: str) -> None:
    with pytest.raises(UsageError):
        source.parse(text)


def test_only_one_list_of_hosts() -> None:
    assert len(source.parse_all(["dns:a", "file:/b", "dns:c"])) == 3
    with pytest.raises(UsageError, match="file:/b and script:/c"):
        source.parse_all(["file:/b", "script:/c"])


# -------------------------------------------------------------------------------------------------------------- labels


def test_labels() -> None:
    assert labels.parse("rack=r7, zone=b") == {"rack": "r7", "zone": "b"}
    assert labels.parse(["rack=r7", "zone=b,room=1"]) == {"rack": "r7", "zone": "b", "room": "1"}
    assert labels.parse({"rack": "r7"}) == {"rack": "r7"}
    assert labels.text_of({"zone": "b", "rack": "r7"}) == "rack=r7,zone=b"


@pytest.mark.parametrize("text", ["rack", "rack=", "=r7", "ra ck=1", "rack=a b", "rack=1,rack=2", "k=" + "x" * 300])
def test_what_is_no_label(text: str) -> None:
    with pytest.raises(UsageError):
        labels.parse(text)


# ------------------------------------------------------------------------------------------------------------- reading


def test_a_script_is_run(tmp_path: Path) -> None:
    assert asyncio.run(read(script(tmp_path, "echo n1:2; echo noise >&2; echo n2"))) == {"n1": 2, "n2": 0}


def test_a_file_is_read(tmp_path: Path) -> None:
    assert asyncio.run(read(listing(tmp_path, "n1:2\nn2\n"))) == {"n1": 2, "n2": 0}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo n1; echo no route to the API >&2; exit 3", "exited with 3: no route to the API"),
        ("kill -9 $$", "ended by SIGKILL"),
        ("printf 'n1\\377'", "not text"),
        ("echo n1:many", "line 1"),
        ("true", "empty"),
    ],
)
def test_a_script_that_fails_is_said(tmp_path: Path, body: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        asyncio.run(read(script(tmp_path, body)))
    assert str(tmp_path / "hosts.sh") in str(caught.value)
    assert caught.value.hint


def test_what_cannot_be_run_or_read_is_said(tmp_path: Path) -> None:
    plain = listing(tmp_path, "n1\n")
    with pytest.raises(UsageError, match="cannot be run: Permission denied"):
        asyncio.run(read(Source("script", plain.where)))
    with pytest.raises(UsageError, match="cannot be run: No such file"):
        asyncio.run(read(Source("script", str(tmp_path / "none"))))
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        asyncio.run(read(Source("file", str(tmp_path / "none"))))
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        asyncio.run(read(Source("file", str(tmp_path))))


def test_a_script_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hangs = script(tmp_path, f"sleep 1000 & echo $! > {pid_file}; wait")
    with pytest.raises(UsageError, match=r"has not ended within 0\.5 s"):
        asyncio.run(read(hangs, patience=0.5))
    pid = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --------------------------------------------------------------------------------------------------------------- names


def test_names_as_this_machine_resolves_them() -> None:
    found = asyncio.run(names.addresses_of("localhost", 7))
    assert set(found) <= {("127.0.0.1", 7), ("::1", 7)}
    assert found
    assert asyncio.run(names.addresses_of("::1", 7)) == (("::1", 7),)


def test_seeds_are_resolved_and_what_is_not_is_said() -> None:
    seeds = ["localhost:7", "127.0.0.1:7", "no-such-host.invalid:7", "[::1]:9"]
    found, trouble = asyncio.run(names.resolve(seeds))
    assert ("127.0.0.1", 7) in found
    assert ("::1", 9) in found
    assert len(found) == len(set(found))
    assert len(trouble) == 1
    assert "no-such-host.invalid" in trouble[0]
    assert "getent" in trouble[0]


def test_a_name_that_cannot_be_one_is_no_crash() -> None:
    with pytest.raises(UsageError, match="does not resolve"):
        asyncio.run(names.addresses_of("x" * 80 + ".example.org"))


# --------------------------------------------------------------------------------------------------------------- watch


def host(name: str, slots: int = 0, *addresses: str) -> ListedHost:
    return ListedHost(host=name, slots=slots, addresses=addresses)


def test_what_is_new_in_a_list_is_told_once(tmp_path: Path) -> None:
    async def story() -> None:
        watch = Watch(listing(tmp_path, "10.0.0.1:2\n"))
        assert await watch.look() == (host("10.0.0.1", 2, "10.0.0.1"),)
        assert await watch.look() is None
        listing(tmp_path, "10.0.0.1:2\n10.0.0.2\n")
        assert await watch.look() == (host("10.0.0.1", 2, "10.0.0.1"), host("10.0.0.2", 0, "10.0.0.2"))
        assert await watch.look() is None
        assert watch.news() == []

    asyncio.run(story())


def test_the_last_good_list_stays_and_trouble_is_said_once(tmp_path: Path) -> None:
    async def story() -> None:
        watch = Watch(script(tmp_path, "echo 10.0.0.1"))
        good = await watch.look()
        script(tmp_path, "echo at $$ >&2; exit 1")
        for _ in range(3):
            assert await watch.look() is None
        said = watch.news()
        assert len(said) == 1, "another process id in its words is nothing new"
        assert "exited with 1: at" in said[0]
        assert "the last list stays" in said[0]
        assert watch.hosts == good
        script(tmp_path, "echo 10.0.0.1:x")
        assert await watch.look() is None
        assert "line 1" in watch.news()[0]
        script(tmp_path, "echo 10.0.0.1")
        assert await watch.look() is None, "the same list as before"
        assert "can be read again" in watch.news()[0]
        (tmp_path / "hosts.sh").unlink()
        assert await watch.look() is None
        assert "No such file" in watch.news()[0]

    asyncio.run(story())


def test_a_name_that_resolves_to_nothing_is_said_and_kept(tmp_path: Path) -> None:
    async def story() -> None:
        watch = Watch(listing(tmp_path, "localhost\nno-such-host.invalid\n"))
        hosts = await watch.look()
        assert hosts is not None
        assert hosts[1] == host("no-such-host.invalid")
        said = watch.news()
        assert len(said) == 1
        assert "no-such-host.invalid" in said[0]
        assert await watch.look() is None
        assert watch.news() == []

    asyncio.run(story())


def test_addresses_stay_while_a_name_does_not_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver is the machine's; that it fails from now on is all that is put in its place."""

    async def story() -> None:
        watch = Watch(listing(tmp_path, "localhost\n"))
        hosts = await watch.look()

        def fails(*_args: object, **_named: object) -> None:
            raise socket.gaierror(socket.EAI_AGAIN, "try again")

        with monkeypatch.context() as patched:
            patched.setattr(socket, "getaddrinfo", fails)
            assert await watch.look() is None
        assert watch.hosts == hosts
        assert "its last address" in watch.news()[0]
        assert await watch.look() is None
        assert "resolves again" in watch.news()[0]

    asyncio.run(story())


def test_the_loopback_in_a_list_is_this_machine(tmp_path: Path) -> None:
    async def story() -> None:
        hosts = await Watch(listing(tmp_path, "localhost\n10.0.0.9\n"), own="10.0.0.7").look()
        assert hosts is not None
        assert "10.0.0.7" in hosts[0].addresses
        assert hosts[1].addresses == ("10.0.0.9",)

    asyncio.run(story())


# --------------------------------------------------------------------------------------------------------------- match


def test_which_host_a_node_is_on() -> None:
    hosts = [host("n1", 2, "10.0.0.1"), host("big.example.org", 4), host("10.0.0.3")]
    listed = Listed(hosts)
    assert listed.find("x", "10.0.0.1", {}) is hosts[0]
    assert listed.find("n1", "10.9.9.9", {}) is hosts[0]
    assert listed.find("x", "10.9.9.9", {"hostname": "big"}) is hosts[1]
    assert listed.find("x", "10.0.0.3", {}) is hosts[2]
    assert listed.find("x", "10.0.0.30", {"hostname": "bigger"}) is None
    assert listed.find("10", "10.9.9.9", {"hostname": "10"}) is None
    assert unresolved(hosts, [hosts[0]]) == ("big.example.org", "10.0.0.3")
    assert unresolved(hosts, [hosts[1], hosts[2], None]) == ()
