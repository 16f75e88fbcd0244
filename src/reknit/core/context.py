"""What a process is told by the one that starts it: one JSON value in one environment variable each.

The launcher gives `REKNIT_ENDPOINT` to services, `REKNIT_AGENT` to an agent; the agent gives `REKNIT_WORKER` to a
worker. Nothing of it is ever added to the user's command line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from reknit.core.errors import UsageError

ENDPOINT = "REKNIT_ENDPOINT"
AGENT = "REKNIT_AGENT"
WORKER = "REKNIT_WORKER"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the broker is and how to get in."""

    url: str
    user: str = ""
    password: str = ""
    system_user: str = ""
    """Credentials of the system account (disconnect notices); empty: that evidence is not available."""
    system_password: str = ""
    replicas: int = 0
    """On how many brokers of a cluster each event is stored; 0: 3 if it has as many, else 1."""


class AgentContext(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent needs to know."""

    endpoint: Endpoint
    job: str
    run: str
    node: str
    nproc: int
    script: str
    args: tuple[str, ...] = ()
    module: bool = False
    """True: `script` is a module name (`-m`)."""
    secret: str = ""
    host: str = "127.0.0.1"
    """Address that peers can reach; the workers' listeners bind to it."""
    log_dir: str = ""
    slots: int = 0
    checkpoint_dir: str = ""
    max_restarts: int = 100
    grace: float = 30.0
    """Seconds between SIGTERM and SIGKILL when draining."""
    evict_grace: float = 10.0
    """Seconds that an evicted but living worker gets to come back before it is killed and started afresh."""
    threads: int = 0
    """Intra-op threads a worker; 0: one, so that bits do not depend on how many workers share the cores."""
    resume: bool = False
    """A run without any live state may begin from a checkpoint of the line that it was resumed from."""
    resume_run: str = ""
    """Newest run of that line; empty: that of the job's newest checkpoint."""
    lanes: bool = True
    """Workers of one host share memory for what passes between them."""
    overlap: str = "auto"
    """Gradients enter the ring during backward: on, off, or auto."""
    transport: str = "tcp"
    verify_weights: bool = False
    chaos: bool = False
    """Workers obey `job.chaos`."""
    labels: dict[str, str] = {}
    """What the node says of itself."""
    seeds: tuple[str, ...] = ()
    """`HOST:PORT` of other agents to begin to gossip with; a host may be a name with many addresses."""
    gossip: str = "off"
    """Figures of the gossip between agents: train, fast, or off."""
    gossip_port: int = 0
    """UDP port to gossip on; 0: a free one."""
    gossip_keys: str = ""
    """File of the keys that gossip is sealed with; empty: a key made of the job's secret."""


class WorkerContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to know."""

    endpoint: Endpoint
    job: str
    run: str
    node: str
    worker: str
    incarnation: int
    attempt: int = 0
    secret: str = ""
    host: str = "127.0.0.1"
    slots: int = 0
    checkpoint_dir: str = ""
    resume: bool = False
    resume_run: str = ""
    """As in `AgentContext`."""
    lanes: bool = True
    overlap: str = "auto"
    transport: str = "tcp"
    """What adds up gradients: tcp, gloo or nccl; the same in all workers of a run."""
    verify_weights: bool = False
    """Compare the weights with all other workers' in every step; all workers of a run do, or none."""
    chaos: bool = False
    """Obey `job.chaos`."""


C = TypeVar("C", Endpoint, AgentContext, WorkerContext)


def to_env(context: msgspec.Struct) -> str:
    """Encode a context for the environment."""
    return msgspec.json.encode(context).decode()


def from_env(name: str, kind: type[C]) -> C:
    """Read a context from the environment; the value may also be `@/path/of/a/file`.

    Raises:
        UsageError: the variable is missing or does not decode; the text names it.
    """
    value = os.environ.get(name, "")
    if not value:
        raise UsageError(f"{name} is not set", hint="this process is started by `reknit run`, `up` or `service`")
    if value.startswith("@"):
        value = Path(value[1:]).read_text()
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{name} does not hold a valid {kind.__name__}: {error}") from error
