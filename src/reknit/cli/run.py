"""`reknit run`: train a script on this node, beginning a job or joining one."""

from __future__ import annotations

import asyncio
import shutil
from typing import Annotated

import typer

from reknit.core.errors import UsageError
from reknit.core.home import Home
from reknit.core.settings import default_of, doc_of

from . import options, output
from .app import app, verb
from .script import find


def _meaningless(spelled: str, because: str) -> typer.models.OptionInfo:
    """A flag of torchrun that means nothing here: refused with the reason, rather than ignored."""

    def refuse(value: str | None) -> None:
        if value is not None:
            # said here, since a callback runs before the verb and so outside of its error handling
            output.fail(UsageError(f"{spelled} of torchrun has no meaning here", hint=because))
            raise typer.Exit(UsageError.exit_code)

    return typer.Option(spelled, callback=refuse, hidden=True)  # type: ignore[no-any-return]


def _flag(name: str, *spelled: str, metavar: str | None = None) -> typer.models.OptionInfo:
    default = default_of(name)
    said = doc_of(name) + (f" [default: {default}]" if default else "")
    return typer.Option(*(spelled or (f"--{name.replace('_', '-')}",)), help=said, metavar=metavar)  # type: ignore[no-any-return]


_NO_RENDEZVOUS = "the job's name is all that nodes need to find each other at a broker: --job NAME --nats URL"


@app.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
    epilog="Every setting is read from REKNIT_<NAME>, torchrun's PET_<NAME> and reknit.toml too: `reknit config show`.",
)
@verb
def run(
    *,
    script: Annotated[
        str, typer.Argument(metavar="SCRIPT", help="Python script, or with -m a module.", show_default=False)
    ],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="All that follows goes to the script untouched.", show_default=False),
    ] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as in python -m.")] = False,
    nnodes: Annotated[str | None, _flag("nnodes", metavar="MIN:MAX")] = None,
    nproc_per_node: Annotated[
        str | None, _flag("nproc_per_node", "--nproc-per-node", "--nproc", metavar="N|auto")
    ] = None,
    slots: Annotated[str | None, _flag("slots", metavar="N")] = None,
    spares: Annotated[str | None, _flag("spares", metavar="N")] = None,
    job: Annotated[str | None, _flag("job", "--job", "--rdzv-id", "-j", metavar="NAME")] = None,
    node: Annotated[str | None, _flag("node", metavar="NAME")] = None,
    nats: options.NatsFlag = None,
    standalone: Annotated[
        bool, typer.Option("--standalone", help="A broker and services of the job's own, even if `reknit up` runs.")
    ] = False,
    host: Annotated[str | None, _flag("host", "--host", "--local-addr", metavar="ADDR")] = None,
    port: Annotated[str | None, _flag("port", metavar="PORT")] = None,
    standby: Annotated[bool | None, _flag("standby", "--standby/--no-standby")] = None,
    nats_replicas: Annotated[str | None, _flag("nats_replicas", metavar="N")] = None,
    label: Annotated[list[str] | None, _flag("labels", "--label", metavar="KEY=VALUE")] = None,
    seed: Annotated[list[str] | None, _flag("seeds", "--seed", metavar="HOST:PORT")] = None,
    discover: Annotated[list[str] | None, _flag("discover", metavar="dns:…|script:…|file:…")] = None,
    discover_every: Annotated[str | None, _flag("discover_every", metavar="SECONDS")] = None,
    gossip: Annotated[str | None, _flag("gossip", metavar="train|fast|off")] = None,
    gossip_port: Annotated[str | None, _flag("gossip_port", metavar="PORT")] = None,
    gossip_keys: Annotated[str | None, _flag("gossip_keys", metavar="FILE")] = None,
    secret_file: Annotated[str | None, _flag("secret_file", metavar="FILE")] = None,
    checkpoint_dir: Annotated[str | None, _flag("checkpoint_dir", metavar="DIR")] = None,
    checkpoint_every_steps: Annotated[str | None, _flag("checkpoint_every_steps", metavar="N")] = None,
    checkpoint_every_seconds: Annotated[str | None, _flag("checkpoint_every_seconds", metavar="SECONDS")] = None,
    keep: Annotated[str | None, _flag("keep", metavar="N")] = None,
    resume: Annotated[bool | None, _flag("resume", "--resume/--no-resume")] = None,
    resume_run: Annotated[str | None, _flag("resume_run", metavar="RUN")] = None,
    max_restarts: Annotated[str | None, _flag("max_restarts", metavar="N")] = None,
    stuck_after: Annotated[str | None, _flag("stuck_after", metavar="SECONDS")] = None,
    last_call: Annotated[str | None, _flag("last_call", metavar="SECONDS")] = None,
    verify_weights: Annotated[bool | None, _flag("verify_weights", "--verify-weights/--no-verify-weights")] = None,
    numerics: Annotated[str | None, _flag("numerics", metavar="strict|relaxed")] = None,
    transport: Annotated[str | None, _flag("transport", metavar="tcp|gloo|nccl")] = None,
    allow_chaos: Annotated[bool | None, _flag("allow_chaos", "--allow-chaos/--no-allow-chaos")] = None,
    grace: Annotated[str | None, _flag("grace", metavar="SECONDS")] = None,
    threads: Annotated[str | None, _flag("threads", metavar="N")] = None,
    lanes: Annotated[bool | None, _flag("lanes", "--lanes/--no-lanes")] = None,
    overlap: Annotated[str | None, _flag("overlap", metavar="auto|1|0")] = None,
    _rdzv_backend: Annotated[str | None, _meaningless("--rdzv-backend", _NO_RENDEZVOUS)] = None,
    _rdzv_conf: Annotated[
        str | None, _meaningless("--rdzv-conf", "--last-call and --stuck-after are the times that count here")
    ] = None,
    _node_rank: Annotated[str | None, _meaningless("--node-rank", "nodes have names: --node NAME")] = None,
    _master_addr: Annotated[str | None, _meaningless("--master-addr", _NO_RENDEZVOUS)] = None,
    _master_port: Annotated[str | None, _meaningless("--master-port", _NO_RENDEZVOUS)] = None,
) -> int:
    """Train SCRIPT on this node: begin a job, or join the one of that name as another node.

    Starts what is missing: a broker and four services for the job, unless `reknit up` or --nats has them. Ctrl-C stops
    the job politely, or drains this node if others take part; once more kills all that was started.
    """
    settings = options.settings(
        nnodes=nnodes,
        nproc_per_node=nproc_per_node,
        slots=slots,
        spares=spares,
        job=job,
        node=node,
        nats=nats,
        host=host,
        port=port,
        standby=standby,
        nats_replicas=nats_replicas,
        labels=label or None,
        seeds=seed or None,
        discover=discover or None,
        discover_every=discover_every,
        gossip=gossip,
        gossip_port=gossip_port,
        gossip_keys=gossip_keys,
        secret_file=secret_file,
        checkpoint_dir=checkpoint_dir,
        checkpoint_every_steps=checkpoint_every_steps,
        checkpoint_every_seconds=checkpoint_every_seconds,
        keep=keep,
        resume=resume,
        resume_run=resume_run,
        max_restarts=max_restarts,
        stuck_after=stuck_after,
        last_call=last_call,
        verify_weights=verify_weights,
        numerics=numerics,
        transport=transport,
        allow_chaos=allow_chaos,
        grace=grace,
        threads=threads,
        lanes=lanes,
        overlap=overlap,
    )
    from .launching import Launch
    from .order import job_name, order_of, plane_of

    found = find(script, tuple(args or ()), module=module)
    home = Home.at(settings.control.home)
    folder = home.job(job_name(settings, found))
    at = plane_of(settings, home, folder, standalone=standalone)
    fresh = not folder.path.exists()
    folder.make()
    screen = output.Screen()
    begun = False
    try:
        launch = Launch(order_of(settings, found, folder.name, folder), home, folder, at, screen)
        try:
            return asyncio.run(launch.run())
        finally:
            begun = launch.taking_part
    finally:
        screen.close()
        if fresh and not begun:
            # nothing began: no job is left behind to be found by `status`
            shutil.rmtree(folder.path, ignore_errors=True)
