"""Whose datagrams opened, and whose could not be: on which side is a node whose keys differ?"""

from __future__ import annotations

from reknit.gossip.reception import SPAN, Reception, Tally

A, B, C = (("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.3", 1))


def test_one_that_opens_what_most_send_is_not_wrong_and_one_that_opens_nothing_is() -> None:
    right, wrong = Reception(), Reception()
    for _ in range(3):
        right.opened(1.0, A)
        right.refused(1.0, B)
        wrong.refused(1.0, A)
        wrong.refused(1.0, C)
    assert right.tally(1.0) == Tally(3, 1, 1)
    assert not right.tally(1.0).wrong
    assert wrong.tally(1.0) == Tally(6, 2, 0)
    assert wrong.tally(1.0).wrong


def test_nothing_received_is_nothing_wrong() -> None:
    assert Reception().tally(5.0) == Tally()
    assert not Tally().wrong


def test_what_is_long_ago_is_forgotten() -> None:
    reception = Reception()
    reception.refused(1.0, A)
    reception.opened(2.0, B)
    assert reception.tally(1.0 + SPAN) == Tally(1, 1, 1)
    assert reception.tally(2.0 + 2 * SPAN) == Tally()
    reception.refused(3.0 + 2 * SPAN, A)
    assert reception.tally(9.0 + 9 * SPAN) == Tally()


def test_who_opens_again_is_not_counted_for_what_was_before() -> None:
    reception = Reception()
    reception.refused(1.0, A)
    reception.opened(1.0 + SPAN, A)
    assert reception.tally(1.5 + SPAN) == Tally(0, 0, 1)


def test_who_is_refused_now_counts_no_more_as_opened() -> None:
    reception = Reception()
    reception.opened(1.0, A)
    reception.refused(2.0, A)
    reception.refused(1.0 + SPAN, A)
    assert reception.tally(1.0 + SPAN) == Tally(2, 1, 0)
