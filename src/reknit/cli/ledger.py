"""`reknit ledger verify`: the proof that every sample is in exactly one committed step, once an epoch."""

from __future__ import annotations

import asyncio

import typer

from reknit.core.ledger import verify as prove
from reknit.core.proof import Proof
from reknit.core.settings import Settings

from . import options, output
from .app import app, verb
from .look import looking

group = typer.Typer(no_args_is_help=True, help="The record of committed steps.", rich_markup_mode=None)
app.add_typer(group, name="ledger")


@group.callback()
def _ledger() -> None:
    """The record of committed steps."""


@group.command("verify")
@verb
def verify(*, job: options.JobFlag = None, nats: options.NatsFlag = None, as_json: options.JsonFlag = False) -> int:
    """Prove from the log that each sample was used exactly once an epoch; exit code 1 if it was not."""
    proof = asyncio.run(_prove(options.settings(job=job, nats=nats)))
    if as_json:
        output.document(proof.to_dict())
    else:
        output.data(proof.text())
    return 0 if proof.ok else 1


async def _prove(settings: Settings) -> Proof:
    async with looking(settings) as look:
        log = await look.log()
    return prove(log)
