"""Hosts that can fall silent: network namespaces on one bridge, and a bridge port that goes down.

Used like this:

    own_network()                       # first thing in main: this process gets a network of its own
    hosts = Hosts(offspring, folder)
    host = hosts.add()                  # 10.77.0.2; this process is 10.77.0.1
    subprocess.Popen([*host.prefix, "python", …])
    hosts.silence(host)                 # no reset, no refusal: what is sent to it and by it vanishes
    hosts.hear(host)

Bridge, hosts and cables lie in this process's own network namespace, and the kernel takes them away with the last
process in it; nothing of the machine's own network is touched, and no name is left behind.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from offspring import Offspring

HERE = "10.77.0.1"
"""Address of this process on the bridge."""
_MARK = "BENCH_OWN_NETWORK"
_PATIENCE = 10.0


class NoNetworks(Exception):
    """This machine lets us make no network namespaces; the text says why."""


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        address: its only address beside loopback.
        prefix: put before a command, makes it run there.
        port: its port on the bridge.
    """

    address: str
    prefix: tuple[str, ...]
    port: str


def own_network() -> None:
    """Go on in a network namespace of this process's own: does not return, but runs the same command again in it.

    Raises:
        NoNetworks: it cannot be made.
    """
    if os.environ.get(_MARK):
        _ip("link", "set", "lo", "up")
        return
    if missing := [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]:
        raise NoNetworks(f"{' and '.join(missing)} not found")
    said = ""
    for how in (["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"]):
        tried = subprocess.run([*how, "true"], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            os.environ[_MARK] = "1"
            os.execvp(how[0], [*how, sys.executable, *sys.argv])  # noqa: S606  # becomes the namespace's first process
        said = tried.stderr.strip()
    raise NoNetworks(said)


class Hosts:
    """See the module."""

    _ports = itertools.count()
    """The kernel takes an ended host's port away in its own time: no port has the name of an earlier one."""

    def __init__(self, offspring: Offspring, folder: Path) -> None:
        self._offspring = offspring
        self._folder = folder
        self._made = 0
        _ip("link", "add", "br0", "type", "bridge")
        _ip("address", "add", f"{HERE}/24", "dev", "br0")
        _ip("link", "set", "br0", "up")

    def add(self) -> Host:
        """Make one more host and connect it to the bridge."""
        self._made += 1
        # the namespace lives as long as the first process in it, which does nothing
        first = self._offspring.start(
            ["unshare", "--net", "sleep", "infinity"],
            tag="hosts",
            log=self._folder / "hosts.log",
            env={},
            cwd=self._folder,
        )
        _wait_for_namespace(first.pid)
        prefix = ("nsenter", f"--net=/proc/{first.pid}/ns/net", "--")
        host = Host(f"10.77.0.{self._made + 1}", prefix, f"p{next(self._ports)}")
        _ip("link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", str(first.pid))
        _ip("link", "set", host.port, "master", "br0")
        _ip("link", "set", host.port, "up")
        _ip("link", "set", "lo", "up", inside=host)
        _ip("address", "add", f"{host.address}/24", "dev", "eth0", inside=host)
        _ip("link", "set", "eth0", "up", inside=host)
        return host

    def silence(self, host: Host) -> float:
        """Take the host's port down; returns the wall time right before."""
        at = time.time()
        _ip("link", "set", host.port, "down")
        return at

    def hear(self, host: Host) -> None:
        """Take the host's port up again."""
        _ip("link", "set", host.port, "up")

    def close(self) -> None:
        """Take the bridge away, for the next one in this namespace; the hosts end with the offspring."""
        _ip("link", "delete", "br0")


def _ip(*words: str, inside: Host | None = None) -> None:
    command = [*(inside.prefix if inside else ()), "ip", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetworks(f"{' '.join(words)}: {done.stderr.strip()}")


def _wait_for_namespace(pid: int) -> None:
    """Wait until a process has left our network namespace."""
    ours = Path("/proc/self/ns/net").readlink()
    deadline = time.monotonic() + _PATIENCE
    while Path(f"/proc/{pid}/ns/net").readlink() == ours:
        if time.monotonic() > deadline:
            raise NoNetworks(f"process {pid} gets no network namespace of its own")
        time.sleep(0.005)
