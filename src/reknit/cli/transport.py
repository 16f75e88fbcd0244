"""Whether this machine has what a run's transport needs: asked before anything of the run is started here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

from reknit.core.errors import UsageError

_PATIENCE = 60.0
"""Seconds in which torch is loaded and has looked for a GPU; then the workers say it."""


async def check_transport(name: str, node: str) -> None:
    """See that a transport can work here.

    Args:
        name: of the transport; only `nccl` needs what a machine may lack, and costs the seconds that torch takes
            to load.
        node: that wants to take part.

    Raises:
        UsageError: it cannot, and why.
    """
    if name != "nccl":
        return
    asked = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "reknit.worker.transport.here",
        name,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        said, _ = await asyncio.wait_for(asked.communicate(), _PATIENCE)
    except TimeoutError:
        return
    finally:
        if asked.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                asked.kill()
            await asked.wait()
    if asked.returncode == UsageError.exit_code:
        with contextlib.suppress(ValueError, KeyError):
            told = json.loads(said)
            raise UsageError(f"node {node} cannot take part: {told['error']}", hint=told["hint"])
