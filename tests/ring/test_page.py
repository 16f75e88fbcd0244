"""The pictures in docs/ring.md are made by the code's own functions; `python tests/ring/test_page.py` prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reknit.core import plan as plans
from reknit.core.events import Range
from reknit.worker.ring import reduction, roll_call
from reknit.worker.ring.frames import HEADER, PIECE
from reknit.worker.ring.roll_call import Entry

SLOTS = 8


def way(ring: tuple[str, ...], owners: tuple[Range, ...]) -> str:
    """Who does what with one piece of a step, hop by hop."""
    first = ring.index(owners[0].worker)
    rotated = (*ring[first:], *ring[:first])
    slots = {r.worker: f"{r.first}..{r.end - 1}" for r in owners}
    covered = {r.worker: r.end for r in owners}
    lines = []
    for worker in rotated:
        where = reduction.route(ring, owners, worker)
        if where.own == 0:
            lines.append(f"{worker:<3} no slots     waits for the result")
        elif where.place == 0:
            lines.append(f"{worker:<3} slots {slots[worker]:<6} {'folds its own':<34} sends 0..{covered[worker] - 1}")
        else:
            what = "has the result" if where.place == where.last else f"sends 0..{covered[worker] - 1}"
            adds = f"gets 0..{where.before - 1}, adds its own in order"
            lines.append(f"{worker:<3} slots {slots[worker]:<6} {adds:<34} {what}")
    last = reduction.route(ring, owners, rotated[0]).last
    for hop in range(1, len(rotated)):
        worker = rotated[(last + hop) % len(rotated)]
        onward = "passes it on" if reduction.route(ring, owners, worker).passes_final else "is the last to need it"
        lines.append(f"{worker:<3} gets the result, {onward}")
    return "\n".join(lines)


def entry(worker: str, held: int, owners: tuple[Range, ...], **more: object) -> Entry:
    given: dict[str, object] = {"role": "active", "current": True, "waiting": False, "result": True, **more}
    return Entry(worker=worker, incarnation=1, held=held, owners=owners, **given)  # type: ignore[arg-type]


def call(*entries: Entry) -> str:
    """A roll call: what each says, and what all decide."""
    decision = roll_call.decide(entries, SLOTS, 5)
    lines = [f"{'':<5}{'holds':>7}{'computed':>12}   then owns"]
    owned = {r.worker: f"{r.first}..{r.end - 1}" for r in decision.owners}
    for e in entries:
        computed = ", ".join(map(str, e.computed)) or "-"
        state = str(e.held) if e.current else "nothing"
        lines.append(f"{e.worker:<5}{state:>7}{computed:>12}   {owned.get(e.worker, '-')}")
    return "\n".join([*lines, decision.words])


def pictures() -> dict[str, str]:
    """All pictures by name."""
    three = plans.split(SLOTS, ["a", "b", "c"])
    four = plans.split(SLOTS, ["a", "b", "c", "d"])
    after = ("a", "c", "d")
    return {
        "the way of a piece": way(("a", "b", "c", "s"), three),
        "a neighbour died in the middle of its slots": call(
            entry("a", 40, four, computed=(0, 1)), entry("c", 40, four, computed=(4,)), entry("d", 40, four)
        ),
        "it died when only one had the result": call(
            *(entry(w, 41 if w == "d" else 40, () if w == "d" else four, computed=()) for w in after)
        ),
        "a spare stands in its place": call(
            entry("a", 40, four, computed=(0, 1)),
            entry("s", 40, four),
            entry("c", 40, four, computed=(4, 5)),
            entry("d", 40, four, computed=(6,)),
        ),
        "one of them has no state": call(
            entry("a", 40, three), entry("b", 40, three), entry("n", -1, (), current=False, waiting=True, result=False)
        ),
    }


@pytest.mark.parametrize("name", list(pictures()))
def test_the_page_shows_what_the_code_does(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "ring.md").read_text()
    assert f"```\n{pictures()[name]}\n```" in page, f"docs/ring.md, «{name}»: python tests/ring/test_page.py prints it"


def test_sizes_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ring.md").read_text()
    assert f"header of {HEADER.size} bytes" in page
    assert f"Pieces of {PIECE >> 10} KiB" in page


if __name__ == "__main__":
    for title, text in pictures().items():
        print(f"{title}\n\n```\n{text}\n```\n")
