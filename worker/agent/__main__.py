"""`python -m reknit.worker.agent`: the supervisor of a node, told by REKNIT_AGENT what to do."""

from __future__ import annotations

import sys

if not sys.flags.safe_path and sys.path:
    # `-m` looks in the working directory first: a user's queue.py there is neither ours nor the forkserver's to load
    del sys.path[0]

from reknit.worker.agent.entry import main

if __name__ == "__main__":
    main()
