"""One reading of a list of hosts, from a script that prints it or from a file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from reknit.core.errors import UsageError

from . import host_list
from .source import Source

PATIENCE = 10.0
"""Seconds that a script may take."""
MOST_BYTES = 4 << 20


async def read(source: Source, patience: float = PATIENCE) -> dict[str, int]:
    """Read the list once.

    Returns:
        See `host_list.parse`.

    Raises:
        UsageError: the script cannot be run, fails or takes too long, the file cannot be read, or a line is bad; the
            text says which and what it said itself.
    """
    try:
        said = await _run(source.where, patience) if source.kind == "script" else _file(source.where)
        return host_list.parse(said)
    except UsageError as error:
        raise UsageError(f"{source}: {error}", hint=error.hint) from error


def _file(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", hint="one HOST or HOST:SLOTS a line") from error
    return _decoded(data)


async def _run(path: str, patience: float) -> str:
    hint = f"it must be executable, print HOST:SLOTS lines and exit with 0 within {patience:g} s; try it by hand"
    try:
        # a session of its own: what it starts can be ended with it, and Ctrl-C is not its
        process = await asyncio.create_subprocess_exec(
            path,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=MOST_BYTES,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"cannot be run: {error.strerror or error}", hint=hint) from error
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(patience):
            out, complaint = await asyncio.gather(_all(process.stdout), _all(process.stderr))
            code = await process.wait()
    except TimeoutError:
        raise UsageError(f"has not ended within {patience:g} s", hint=hint) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if code:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        last = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise UsageError(": ".join([how, *last]), hint=hint)
    return _decoded(out)


async def _all(stream: asyncio.StreamReader) -> bytes:
    """Read to the end; what is too much is read and thrown away, so that the writer does not hang."""
    kept = bytearray()
    while chunk := await stream.read(1 << 16):
        kept += chunk[: max(0, MOST_BYTES + 1 - len(kept))]
    return bytes(kept)


def _decoded(data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise UsageError(f"holds more than {MOST_BYTES >> 20} MiB", hint="one HOST or HOST:SLOTS a line is enough")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"is not text: {error.reason} at byte {error.start}", hint="UTF-8 is read") from error
