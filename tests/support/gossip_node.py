"""A process that gossips: `python -m support.gossip_node NAME HOST PRESET [SEED…]`; tells its address and what it sees.

One JSON line on stdout whenever something changed, which each round of pings does; ends when stdin is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys

from reknit.core.address import split
from reknit.gossip.keyring import Keyring
from reknit.gossip.preset import PRESETS
from reknit.worker.agent.gossiping import Gossiping

KEY = bytes(32)


async def main(name: str, host: str, preset: str, seeds: list[str]) -> None:
    """Gossip until stdin is closed."""
    node = Gossiping(name, PRESETS[preset], keyring=Keyring((KEY,)), keys=None, changed=lambda _: None)
    trouble = await node.open(host)
    if trouble:
        sys.exit(trouble)
    node.begin(1)
    node.meet([split(seed) for seed in seeds])
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    said = ""
    while not ended.is_set():
        assert node.core is not None
        report = node.report()
        line = json.dumps(
            {
                "name": name,
                "address": node.address,
                "silent": report["silent"],
                "sick": report["sick"],
                "rounds": node.core.rounds,
                "alive": sorted(node.core.alive()),
            }
        )
        if line != said:
            said = line
            print(line, flush=True)
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
