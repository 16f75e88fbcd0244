"""Hosts on a switch, without root: a network namespace a host, joined by a bridge, inside one user namespace.

Used like this:

    with Hosts() as hosts:
        a, b = hosts.add("a"), hosts.add("b")
        subprocess.run([*a.wrap, "ping", b.address])
        hosts.unplug(a)             # silence: nobody gets a reset

Each namespace lives as long as a `cat` that reads from us: when the tests end, however they end, the kernel takes it
all apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from types import TracebackType
from typing import Self

NETWORK = "10.77.0"
NOBODY = "02:00:00:00:00:99"
"""A hardware address that no host has: what is sent there is lost without a word."""


class NoHosts(Exception):
    """This machine gives no namespaces; the text says what was refused."""


@dataclasses.dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: also of its port at the switch.
        address: its IPv4 address.
        pid: of the process that holds its namespace.
    """

    name: str
    address: str
    pid: int

    @property
    def wrap(self) -> tuple[str, ...]:
        """What to put before a command so that it runs there."""
        return _enter(self.pid, "-n")


class Hosts:
    """See the module."""

    def __init__(self) -> None:
        self._held: list[subprocess.Popen[bytes]] = []
        self.hosts: dict[str, Host] = {}
        self._switch = 0

    def __enter__(self) -> Self:
        try:
            self._switch = self._hold(["unshare", "-U", "-r", "-n"])
            for bridge in ("br0", "br1"):
                self.switch("ip", "link", "add", "name", bridge, "type", "bridge")
                self.switch("ip", "link", "set", "dev", bridge, "up")
        except (OSError, NoHosts) as error:
            self._end()
            raise NoHosts(f"no network namespaces here: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _hold(self, wrap: list[str]) -> int:
        # `cat` answers once it runs, and ends when our end of its pipe is closed
        holder = subprocess.Popen([*wrap, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._held.append(holder)
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        with contextlib.suppress(BrokenPipeError):
            holder.stdin.write(b"here\n")
            holder.stdin.flush()
        if holder.stdout.readline() != b"here\n":
            raise OSError(holder.stderr.read().decode())
        return holder.pid

    def _end(self) -> None:
        for holder in reversed(self._held):
            holder.kill()
            holder.wait()
            for pipe in (holder.stdin, holder.stdout, holder.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        self._held.clear()

    def switch(self, *command: str) -> str:
        """Run a command where the switch is."""
        return _run([*_enter(self._switch, "-n"), *command])

    def at(self, host: Host, *command: str) -> str:
        """Run a command on a host; what it prints."""
        return _run([*host.wrap, *command])

    def add(self, name: str) -> Host:
        """Plug one more host in."""
        pid = self._hold([*_enter(self._switch), "unshare", "-n"])
        host = Host(name, f"{NETWORK}.{len(self.hosts) + 1}", pid)
        self.hosts[name] = host
        self.switch("ip", "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self.at(host, "ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            self.at(host, "ip", "link", "set", "dev", device, "up")
        self.switch("ip", "link", "set", "dev", name, "up")
        self.plug(host)
        return host

    def unplug(self, host: Host) -> None:
        """Take a host off the network: whatever is sent to it or by it is lost, and nobody is told."""
        self.switch("ip", "link", "set", "dev", host.name, "nomaster")

    def plug(self, host: Host) -> None:
        """Put it back, after `unplug` or `split`."""
        self.switch("ip", "link", "set", "dev", host.name, "master", "br0")

    def split(self, *hosts: Host) -> None:
        """Put these on a switch of their own: they reach each other and nobody else, until they are plugged back."""
        for host in hosts:
            self.switch("ip", "link", "set", "dev", host.name, "master", "br1")

    def lose(self, sender: Host, to: Host) -> None:
        """Lose what one host sends to another; the other direction is left alone."""
        self.at(sender, "ip", "neigh", "replace", to.address, "lladdr", NOBODY, "dev", "eth0", "nud", "permanent")

    def deliver(self, sender: Host, to: Host) -> None:
        """End `lose`."""
        self.at(sender, "ip", "neigh", "del", to.address, "dev", "eth0")

    def cut(self, a: Host, b: Host) -> None:
        """Lose what two hosts send each other."""
        self.lose(a, b)
        self.lose(b, a)

    def heal(self, a: Host, b: Host) -> None:
        """End `cut`."""
        self.deliver(a, b)
        self.deliver(b, a)

    def reset(self, a: Host, b: Host) -> int:
        """Reset every TCP connection between two hosts; how many there were."""
        killed = self.at(a, "ss", "-K", "-H", "-t", "-n", "dst", b.address)
        return len(killed.splitlines())

    def slow(self, host: Host, rate: str) -> None:
        """Let a host send no more than so much (`tc`'s words, `2mbit`)."""
        shaped = f"dev eth0 root tbf rate {rate} burst 16k latency 400ms"
        self.at(host, "tc", "qdisc", "replace", *shaped.split())

    def fast(self, host: Host) -> None:
        """End `slow`."""
        self.at(host, "tc", "qdisc", "del", "dev", "eth0", "root")


def _enter(pid: int, *more: str) -> tuple[str, ...]:
    return ("nsenter", "-t", str(pid), "-U", *more, "--preserve-credentials")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NoHosts(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
