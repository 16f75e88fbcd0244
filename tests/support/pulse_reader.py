"""What agents say of their neighbours: `python -m support.pulse_reader ENDPOINT_FILE JOB`, a JSON line for each change.

`{"node": "a", "silent": ["b"], "sick": false}`; it ends when stdin is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from reknit.core.bus import Bus
from reknit.core.context import Endpoint
from reknit.core.events import AnyPulse, NodePulse


async def main(endpoint: Endpoint, job: str) -> None:
    """Listen until stdin is closed."""
    said: dict[str, str] = {}

    def hear(_job: str, pulse: AnyPulse) -> None:
        if isinstance(pulse, NodePulse):
            line = json.dumps({"node": pulse.node, "silent": pulse.silent, "sick": pulse.sick})
            if said.get(pulse.node) != line:
                said[pulse.node] = line
                print(line, flush=True)

    bus = await Bus.connect(endpoint, source="pulse-reader")
    await bus.pulses(hear, job=job)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    await bus.close()


if __name__ == "__main__":
    asyncio.run(main(Endpoint(**json.loads(Path(sys.argv[1]).read_text())), sys.argv[2]))
