"""The way to a broker: one that is given, the one of `reknit up`, or one of the job's own, which is started here.

Used like this: `with reading(settings, job) as (endpoint, live): …` for the verbs that look; `run` and `up` hold the
control of a folder themselves and use `start_broker`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import msgspec

from reknit.core.address import join
from reknit.core.broker import Broker
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable, UsageError
from reknit.core.home import ControlFolder, Home, JobFolder, read_endpoint

DEFAULT_PORT = 4222
READ = "read"
"""What a verb that only looks writes into the lock: others wait for it, since it is soon done."""
PATIENCE = 15.0
"""Seconds to wait for another process that is about to be done with a store."""


def given(nats: str, replicas: int = 0) -> Endpoint:
    """Turn the setting `nats` into an endpoint.

    Args:
        nats: an address, several of one cluster with commas between them, or a file that holds an endpoint.
        replicas: on how many brokers each event shall be stored; 0: what the file says, else as many as is good.

    Raises:
        UsageError: neither an address (or several) nor a file that holds an endpoint.
    """
    file = Path(nats.removeprefix("@"))
    if nats.startswith("@") or nats.endswith(".json"):
        endpoint = read_endpoint(file)
        if not file.exists():
            raise UsageError(f"{file} does not exist", hint="give the endpoint.json of a job's folder, or an address")
        if endpoint is None:
            raise UsageError(f"{file} does not hold an endpoint", hint="give the endpoint.json of a job's folder")
        return msgspec.structs.replace(endpoint, replicas=replicas or endpoint.replicas)
    brokers = [_broker(part.strip()) for part in nats.split(",")]
    logins = {(broker.user, broker.password) for broker in brokers} - {("", "")}
    if len(logins) > 1:
        raise UsageError(
            f"{_hidden(nats)!r} names several brokers with different credentials",
            hint="brokers of one cluster let the same user in; give the credentials with one of them",
        )
    user, password = next(iter(logins), ("", ""))
    url = ",".join(broker.url for broker in brokers)
    return Endpoint(url=url, user=user, password=password, replicas=replicas)


def _broker(nats: str) -> Endpoint:
    """One broker's address."""
    url = urllib.parse.urlsplit(nats if "://" in nats else f"nats://{nats}")
    try:
        port = url.port or DEFAULT_PORT
    except ValueError:
        port = -1
    known = url.scheme in {"nats", "tls"} and bool(url.hostname) and not url.path.strip("/")
    if not known or url.hostname is None or port < 0 or any(c.isspace() for c in nats):
        raise UsageError(
            f"{_hidden(nats)!r} is not the address of a broker",
            hint="write nats://user:password@host:port or host:port, several of one cluster with commas between them",
        )
    return Endpoint(
        url=f"{url.scheme}://{join(url.hostname, port)}",
        user=urllib.parse.unquote(url.username or ""),
        password=urllib.parse.unquote(url.password or ""),
    )


def _hidden(nats: str) -> str:
    return ",".join(part.strip().rpartition("@")[2] for part in nats.split(","))


def key_of(folder: ControlFolder) -> str:
    """What tells one store from another: the password that its broker made for itself; empty if it has no store."""
    try:
        return str(json.loads((folder.store / "credentials.json").read_text())["password"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def folder_of(home: Home, job: JobFolder) -> ControlFolder | None:
    """The folder whose store holds the job's log; None: a broker that is not ours, told in endpoint.json."""
    endpoint = job.endpoint()
    if endpoint is not None and endpoint.password and endpoint.password == key_of(home.up):
        return home.up
    own = key_of(job)
    if own and (endpoint is None or endpoint.password == own):
        return job
    return None


def start_broker(folder: ControlFolder, *, port: int = 0, host: str = "127.0.0.1", any_port: bool = False) -> Broker:
    """Start the broker over a folder's store; the caller holds the folder's control.

    Args:
        folder: whose.
        port: 0: the one it had before, or a free one.
        host: address to listen on.
        any_port: True: should the one it had before be taken by somebody else, take a free one.

    Raises:
        UsageError: the port is taken (the text names the port, who holds it and the option).
        ControlPlaneUnreachable: it does not come up.
    """
    wait_for_store(folder.store)
    broker = Broker(folder.store, port, host=host, die_with_parent=True)
    try:
        broker.start()
    except UsageError:
        kept = folder.store / "port"
        if port or not any_port or not kept.is_file():
            raise
        kept.unlink()
        broker.start()
    return broker


def wait_for_store(store: Path) -> None:
    """A broker whose launcher was killed is itself being killed just now: wait for the kernel to be done with it."""
    try:
        fd = os.open(store / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.02)
    finally:
        os.close(fd)


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """A way to a job's log.

    Attributes:
        live: False: the broker was started only to read; nobody is there to act.
    """

    endpoint: Endpoint
    live: bool


@contextlib.contextmanager
def reading(home: Home, job: JobFolder) -> Iterator[Way]:
    """Reach the log of a job: at its living broker, else at one that is started for this moment.

    Raises:
        ControlPlaneUnreachable: the job used a broker elsewhere whose place is not known any more.
        UsageError: the store cannot be read.
    """
    folder = folder_of(home, job)
    if folder is None:
        endpoint = job.endpoint()
        if endpoint is None:
            raise ControlPlaneUnreachable(
                f"it is not known where the log of job {job.name!r} is", hint="say where its broker is with --nats"
            )
        yield Way(endpoint, live=True)
        return
    with folder.control(READ, wait=0.3) as mine:
        if mine:
            with _for_a_moment(folder) as endpoint:
                yield Way(endpoint, live=False)
            return
    with contextlib.ExitStack() as stack:
        deadline = time.monotonic() + PATIENCE
        while folder.holder().startswith(READ):
            if stack.enter_context(folder.control(READ, wait=0.2)):
                yield Way(stack.enter_context(_for_a_moment(folder)), live=False)
                return
            if time.monotonic() > deadline:
                raise ControlPlaneUnreachable(f"the log of job {job.name!r} is being read by {folder.holder()}")
        live = folder.endpoint()
        if live is None:
            raise ControlPlaneUnreachable(
                f"the broker of {folder.path} is starting or ending", hint="try again in a moment"
            )
        yield Way(live, live=True)


@contextlib.contextmanager
def _for_a_moment(folder: ControlFolder) -> Iterator[Endpoint]:
    kept = folder.store / "port"
    before = kept.read_text() if kept.is_file() else ""
    broker = start_broker(folder, any_port=True)
    try:
        yield broker.endpoint
    finally:
        broker.stop()
        if before:  # nodes elsewhere may still look for the broker where it was
            kept.write_text(before)
