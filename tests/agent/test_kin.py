"""Who belongs to whom in a process table."""

from reknit.worker.agent.kin import Kin, descendants
from reknit.worker.agent.procfs import Entry

GUARD, FORK, A, B = 10, 11, 20, 30


def row(parent: int, session: int, started: int = 1, state: str = "S") -> Entry:
    return Entry(parent=parent, session=session, started=started, state=state)


def base() -> dict[int, Entry]:
    return {1: row(0, 1), 5: row(1, 5), GUARD: row(5, GUARD), FORK: row(GUARD, GUARD), A: row(FORK, A), B: row(FORK, B)}


def left_by_a(table: dict[int, Entry], kin: Kin | None = None, marks: dict[int, str] | None = None) -> set[int]:
    table = {pid: r for pid, r in table.items() if pid != A}
    table = {pid: row(GUARD, r.session, r.started, r.state) if r.parent == A else r for pid, r in table.items()}
    return (kin or Kin((marks or {}).get if marks else lambda _: "")).of(table, "w-a", A, {"w-b": B}, GUARD)  # type: ignore[arg-type]


def test_descendants() -> None:
    assert descendants(base(), [GUARD]) == {FORK, A, B}
    assert descendants(base(), [A]) == set()


def test_nothing_is_left_by_a_lonely_worker() -> None:
    assert left_by_a(base()) == set()


def test_children_and_their_children() -> None:
    table = base() | {21: row(A, A), 22: row(21, A), 31: row(B, B), 32: row(31, B)}
    assert left_by_a(table) == {21, 22}


def test_an_orphan_of_the_session() -> None:
    assert left_by_a(base() | {22: row(GUARD, A)}) == {22}


def test_one_that_left_the_session() -> None:
    # setsid, then its parent ended: now a child of the guard, new since the worker's death
    assert left_by_a(base() | {22: row(GUARD, 22), 23: row(22, 22)}) == {22, 23}


def test_one_that_left_the_session_of_another_worker_is_spared_when_it_was_seen_before() -> None:
    kin = Kin(lambda _: "")
    kin.observe(base() | {31: row(B, 31)}, {"w-a": A, "w-b": B}, GUARD)
    assert left_by_a(base() | {31: row(GUARD, 31)}, kin) == set()


def test_one_that_left_the_session_is_known_by_its_environment() -> None:
    marks = {31: "w-b", 21: "w-a"}
    table = base() | {31: row(GUARD, 31), 21: row(GUARD, 21)}
    kin = Kin(lambda pid: marks.get(pid, ""))
    assert left_by_a(table, kin) == {21}


def test_a_stranger_that_was_there_before_is_spared() -> None:
    kin = Kin(lambda _: "")
    stranger = {40: row(GUARD, 40)}
    kin.observe(base() | stranger, {"w-a": A, "w-b": B}, GUARD)
    assert left_by_a(base() | stranger, kin) == set()


def test_a_pid_that_was_used_again_is_not_taken_for_the_old_one() -> None:
    kin = Kin(lambda _: "")
    kin.observe(base() | {21: row(A, 21, started=5)}, {"w-a": A, "w-b": B}, GUARD)
    assert left_by_a(base() | {21: row(1, 21, started=9)}, kin) == set()


def test_zombies_are_gone_already() -> None:
    assert left_by_a(base() | {22: row(GUARD, A, state="Z")}) == set()


def test_without_a_guard_sessions_still_count() -> None:
    table = {pid: r for pid, r in base().items() if pid != GUARD} | {21: row(5, A)}
    assert left_by_a(table) == {21}
