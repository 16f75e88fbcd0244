"""The benchmarks are scripts: their folder is on the path when they run, and so it is here."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(BENCH), str(BENCH / "scripts")]
