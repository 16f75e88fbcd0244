"""What a run is to do, worked out and checked from the settings before anything is started."""

from __future__ import annotations

import dataclasses
import secrets
import socket
import time
from pathlib import Path

from reknit.core import labels
from reknit.core.context import Endpoint
from reknit.core.discovery.source import Source
from reknit.core.errors import UsageError
from reknit.core.events import JobSubmitted
from reknit.core.home import Home, JobFolder, read_secret, secret_check
from reknit.core.settings import AUTO, Settings, usable_cores
from reknit.core.subjects import MAX_NAME

from . import checkpoint_folder, control, host_reader, output
from .address import check_host, is_loopback, node_name
from .script import Script

_WILDCARDS = frozenset({"0.0.0.0", "::"})  # noqa: S104  (refused, not bound)


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What to run.

    Attributes:
        spec: the submission that this run would make.
        node_asked: True if the user named the node.
        host: address for peers, empty: the one on the route to the broker.
        labels: what this node says of itself.
        seeds: `HOST:PORT` of agents to gossip with first.
        hosts: where the list of hosts that take part is read, None: nobody lists them.
        hosts_every: seconds between two readings of it.
        gossip_port: UDP port to gossip on, 0: a free one.
        gossip_keys: file of the keys that gossip is sealed with, empty: the secret makes one.
        target: script path or module name for this node's workers.
    """

    job: str
    spec: JobSubmitted
    node: str
    node_asked: bool
    nproc: int
    host: str
    labels: dict[str, str]
    seeds: tuple[str, ...]
    hosts: Source | None
    hosts_every: float
    gossip_port: int
    gossip_keys: str
    secret: str
    target: str
    module: bool
    threads: int
    lanes: bool
    overlap: str
    grace: float


@dataclasses.dataclass(frozen=True, slots=True)
class PlaneAt:
    """Where the job's control plane is, as found before anything is started.

    Attributes:
        endpoint: a broker that is given, or that of `reknit up`.
        folder: else the folder whose broker is used or started.
        host: address that a broker started here listens on.
        port: port of it, 0: any.
        standby: a second membership service is kept as well.
    """

    endpoint: Endpoint | None = None
    folder: JobFolder | None = None
    host: str = ""
    port: int = 0
    standby: bool = False


def job_name(settings: Settings, script: Script) -> str:
    """The job's name: the one given, else the script's stem and 4 random letters."""
    if settings.job.job:
        return settings.job.job
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in script.stem).strip("-_") or "job"
    return f"{stem[: MAX_NAME - 5]}-{secrets.token_hex(2)}"


def order_of(settings: Settings, script: Script, job: str, folder: JobFolder) -> Order:
    """Work out what to run; the job's folder exists.

    Raises:
        UsageError: a secret that cannot be read, an address that is not this machine's, a folder that cannot hold
            checkpoints.
    """
    wanted, node, saves = settings.job, settings.node, settings.checkpoint
    if settings.node.host:
        check_host(settings.node.host)
        if settings.node.host in _WILDCARDS:
            raise UsageError(
                f"{settings.node.host} is no address that another machine can reach",
                hint="give --host one of this machine's own addresses (`hostname -I` lists them)",
            )
    if (saves.resume or saves.resume_run) and not wanted.job:
        raise UsageError(
            "without a name each run is a job of its own, so there is nothing to resume",
            hint="name the job that has the checkpoints: --job NAME (`reknit status --all` lists those known here)",
        )
    secret = read_secret(Path(settings.control.secret_file)) if settings.control.secret_file else folder.secret()
    hosts, gossips = host_reader.split(node.discover)
    nproc = usable_cores() if wanted.nproc_per_node == AUTO else wanted.nproc_per_node
    where = Path(saves.checkpoint_dir or folder.checkpoints).expanduser().absolute()
    checkpoint_folder.check(where, job)
    spec = JobSubmitted(
        run=f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}",
        script=script.target,
        args=script.args,
        slots=wanted.slots,
        min_nodes=wanted.nnodes.least,
        max_nodes=wanted.nnodes.most,
        nproc_per_node=nproc,
        spares=wanted.spares,
        secret_check=secret_check(secret, job),
        checkpoint_dir=str(where),
        checkpoint_every_steps=saves.checkpoint_every_steps,
        checkpoint_every_seconds=saves.checkpoint_every_seconds,
        checkpoint_keep=saves.keep,
        max_restarts=wanted.max_restarts,
        stuck_after=wanted.stuck_after,
        last_call=wanted.last_call,
        resume=saves.resume or bool(saves.resume_run),
        resume_run=saves.resume_run,
        # where arithmetic may differ the weights do, and nothing is wrong with that
        verify_weights=wanted.verify_weights and wanted.numerics == "strict",
        transport=wanted.transport,
        numerics=wanted.numerics,  # type: ignore[arg-type]  # the setting takes no other words
        chaos=wanted.allow_chaos,
        gossip=wanted.gossip if wanted.nnodes.most > 1 else "off",  # type: ignore[arg-type]  # the same
    )
    return Order(
        job=job,
        spec=spec,
        node=node.node or node_name(),
        node_asked=bool(node.node),
        nproc=nproc,
        host=node.host,
        labels={labels.HOSTNAME: socket.gethostname(), **labels.parse(node.labels)},
        seeds=(*(s for s in node.seeds.split(",") if s), *gossips),
        hosts=hosts,
        hosts_every=node.discover_every,
        gossip_port=node.gossip_port,
        gossip_keys=str(Path(node.gossip_keys).expanduser().absolute()) if node.gossip_keys else "",
        secret=secret,
        target=script.target,
        module=bool(script.module),
        threads=node.threads,
        lanes=node.lanes,
        overlap=node.overlap,
        grace=node.grace,
    )


def plane_of(settings: Settings, home: Home, folder: JobFolder, *, standalone: bool) -> PlaneAt:
    """Find where the job's control plane is: given, where the job's log lies already, `reknit up`, or its own.

    Raises:
        UsageError: `nats` is no address; flags that do not go together.
    """
    if settings.control.nats:
        if standalone:
            raise UsageError("--standalone and --nats do not go together", hint="leave one of them out")
        given = control.given(settings.control.nats, settings.control.nats_replicas)
        return PlaneAt(given, standby=settings.control.standby)
    own = PlaneAt(folder=folder, host=settings.node.host, port=settings.control.port, standby=settings.control.standby)
    if folder.controlled and not folder.holder().startswith(control.READ):
        return own  # another node of this machine takes part already
    up = home.up.endpoint() if home.up.controlled else None
    if standalone or up is None or control.folder_of(home, folder) == folder:
        _warn_of_loopback(settings)
        return own
    return PlaneAt(up, standby=settings.control.standby)


def _warn_of_loopback(settings: Settings) -> None:
    if settings.job.nnodes.most > 1 and is_loopback(settings.node.host or "127.0.0.1"):
        output.note("the broker listens on 127.0.0.1: nodes on other machines need --host with an address of this one")
