"""kill -9 of a real writer at random moments, a hundred times: a whole checkpoint is found every time."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

from support import checkpoints

PROGRAM = Path(checkpoints.__file__).with_name("crash_writer.py")


def test_the_newest_whole_checkpoint_is_found_after_each_of_a_hundred_kills(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), "100", str(seed)],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr[-3000:]}"
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert told["rounds"] == 100
    assert told["checkpoints"] > 20
    assert told["hit_files"] > 20, "the kills did not hit the writing"
