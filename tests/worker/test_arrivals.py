"""Gradients copied during backward: the same bytes as after it for awkward models, and never trusted too early."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from reknit.core.events import Range
from reknit.worker.arrivals import REHEARSALS, STEADY, Arrivals
from reknit.worker.exchange import Exchange
from reknit.worker.flat import Flat
from reknit.worker.overlap import Overlap
from reknit.worker.ring.link import LinkBroken
from reknit.worker.tracked import Tracked

LEARNING = STEADY + REHEARSALS
WIDTH = 192
Script = Callable[[nn.Module, int], None]
"""What a script does with a micro-batch: forward, backward, and what else it likes; gets the slot's number."""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Desk:
    """A main thread's side for one worker with one slot a step; the test plays the engine."""

    def __init__(self, model: nn.Module, when: str = "on", slots: int = 1) -> None:
        self.model = model
        self.flat = Flat(Tracked(model=model))
        self.shared = Exchange("a", 1, self.flat.shape, lambda step: slots, 1000)
        for _ in range(slots + 4):
            self.shared.pool.give(np.zeros(self.flat.shape.nbytes, np.uint8))  # what is no number is never written
        self.said: list[str] = []
        self.broken: list[int] = []
        self.overlap = Overlap(when)
        self.shared.early.on_spoilt = self.broken.append
        self.arrivals = Arrivals(self.flat, self.shared, self.overlap, self.said.append)
        self.slots = slots
        self.step = -1
        self.given: list[int] = []
        self.cut = self.flat.shape.pieces()

    def begin(self) -> None:
        """A step and its reduction begin."""
        self.step += 1
        with self.shared.cv:
            self.shared._drop_computed()
            self.shared.step, self.shared.owners = self.step, (Range(worker="a", first=0, end=self.slots),)
        self.shared.begin(self.step)
        self.shared.early.anew(7)

    def slot(self, script: Script, slot: int = 0, *, full: bool = True) -> np.ndarray:
        """Run one slot; what was handed in."""
        torch.manual_seed(1000 * self.step + slot)
        self.flat.begin_slot()
        self.arrivals.begin(self.step, slot, full=full)
        script(self.model, self.step)
        self.given.append(self.looked())
        buffer, copied = self.arrivals.end()
        out = self.shared.pool.take() if buffer is None else buffer
        self.flat.collect(out, weight=1.0 if full else 0.5, loss=1.5, samples=4, copied=copied)
        self.shared.put(self.step, slot, out)
        self.arrivals.handed_in()
        return out

    def look(self, _parameter: torch.Tensor) -> None:
        """A hook that looks in the middle of backward."""
        self.looked()

    def looked(self) -> int:
        """As the engine: how many pieces may be used now."""
        try:
            return sum(self.shared.early.ready(n) is not None for n in range(len(self.cut)))
        except LinkBroken:
            return -1


def expected(model: nn.Module, script: Script, steps: int) -> list[bytes]:
    """The same without any of it."""
    model = copy.deepcopy(model)
    flat = Flat(Tracked(model=model))
    found = []
    for step in range(steps):
        torch.manual_seed(1000 * step)
        flat.begin_slot()
        script(model, step)
        out = np.zeros(flat.shape.nbytes, np.uint8)
        flat.collect(out, weight=1.0, loss=1.5, samples=4)
        found.append(out.tobytes())
    return found


def tower(dtype: torch.dtype = torch.float32, layers: int = 6) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).to(dtype)


def plain(model: nn.Module, step: int) -> None:
    x = torch.randn(4, WIDTH)
    if isinstance(model, nn.Sequential):
        x = x.to(model[0].weight.dtype)
    out = model(x)
    (out.abs() if out.is_complex() else out).square().mean().float().backward()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.layers[3].weight = self.layers[1].weight
        self.layers[2].requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(100_000))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class Complicated(nn.Module):
    """Complex, double and half parameters, buffers, an embedding."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding = nn.Embedding(1000, WIDTH, sparse=sparse)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.wave = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64))
        self.wide = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.short = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        ids = (x.abs()[:, :3] * 300).long() % 1000
        x = self.norm(x + self.embedding(ids).sum(1))
        x = (x.to(torch.complex64) @ self.wave).abs()
        x = self.wide(x.double()).to(torch.bfloat16)
        return self.head(self.short(x).float())


def twice(model: nn.Module, step: int) -> None:
    plain(model, step)
    plain(model, step)


class Scarce(nn.Module):
    """One of its layers, in the middle, is used now and then."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.used = 0

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            if number != 2 or self.used:
                x = layer(x)
        return x


def nan(model: nn.Module, step: int) -> None:
    x = torch.randn(4, WIDTH)
    x[0, 0] = torch.nan
    model(x).square().mean().backward()


@pytest.mark.parametrize(
    ("make", "script", "early"),
    [
        (tower, plain, 3),
        (partial(tower, torch.bfloat16), plain, 3),
        (partial(tower, torch.complex64), plain, 6),
        (partial(tower, torch.float64), plain, 0),
        (tower, twice, 3),
        (tower, nan, 3),
        (Tied, plain, 3),
        (partial(Complicated, sparse=False), plain, 5),
        (partial(Complicated, sparse=True), plain, 1),
        (partial(nn.Linear, WIDTH, WIDTH), plain, 0),
    ],
    ids=["float", "bfloat16", "complex", "double", "two-backwards", "nan", "tied", "mixed", "sparse", "small"],
)
@pytest.mark.filterwarnings("ignore:Complex modules")
def test_the_same_bytes_and_many_pieces_early(make, script, early):
    steps = LEARNING + 3
    torch.manual_seed(2)
    model = make()
    desk = Desk(copy.deepcopy(model))
    for step, right in enumerate(expected(model, script, steps)):
        desk.begin()
        assert desk.slot(script).tobytes() == right, step
    assert desk.given[:LEARNING] == [0] * LEARNING, "nothing before it was learned and rehearsed"
    assert desk.given[LEARNING:] == [early] * 3
    assert all(given < len(desk.cut) for given in desk.given), "the last ones only when the slot was handed in"
    assert desk.broken == []


def test_only_the_last_of_several_slots_goes_early():
    desk = Desk(tower(), slots=3)
    for _ in range(LEARNING + 2):
        desk.begin()
        for slot in range(3):
            desk.slot(plain, slot)
    assert desk.given[-3:-1] == [0, 0]
    assert desk.given[-1] > 0


def test_the_last_slot_is_the_last_to_be_computed():
    """After a death slots come in another order: what counts is that all others are there."""
    desk = Desk(tower(), slots=3)
    for _ in range(LEARNING):
        desk.begin()
        for slot in range(3):
            desk.slot(plain, slot)
    desk.begin()
    desk.slot(plain, 1)
    desk.slot(plain, 2)
    desk.slot(plain, 0)
    assert desk.given[-3:-1] == [0, 0]
    assert desk.given[-1] > 0


def test_a_slot_of_an_uneven_tail_is_weighted_and_does_not_go_early():
    desk = Desk(tower())
    model = copy.deepcopy(desk.model)
    for _ in range(LEARNING + 1):
        desk.begin()
        desk.slot(plain)
    assert desk.given[-1] > 0
    desk.begin()
    handed_in = desk.slot(plain, full=False)
    assert desk.given[-1] == 0
    flat = Flat(Tracked(model=model))
    torch.manual_seed(1000 * desk.step)
    flat.begin_slot()
    plain(model, 0)
    out = np.zeros(flat.shape.nbytes, np.uint8)
    flat.collect(out, weight=0.5, loss=1.5, samples=4)
    assert handed_in.tobytes() == out.tobytes()


def clipped(model: nn.Module, step: int) -> None:
    plain(model, step)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def scaled_behind_the_back(model: nn.Module, step: int) -> None:
    plain(model, step)
    model[2].weight.grad.data.mul_(0.5)  # bumps no version counter


def one_bit(model: nn.Module, step: int) -> None:
    plain(model, step)
    model[0].weight.grad.data.view(torch.int32)[3, 3] ^= 1


def dropped(model: nn.Module, step: int) -> None:
    plain(model, step)
    model[5].bias.grad = None


def replaced(model: nn.Module, step: int) -> None:
    plain(model, step)
    model[1].weight.grad = torch.zeros_like(model[1].weight)


def unscaled(model: nn.Module, step: int) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler.scale(model(torch.randn(4, WIDTH)).square().mean()).backward()
    scaler.unscale_(optimizer)


def double(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(2)


def hooked(model: nn.Module, step: int) -> None:
    if not hasattr(model, "hooked"):
        model.hooked = [p.register_post_accumulate_grad_hook(double) for p in model.parameters()]
    plain(model, step)


def negative_zero(model: nn.Module, step: int) -> None:
    plain(model, step)
    model[3].bias.grad.zero_().neg_()


CHANGES = [clipped, scaled_behind_the_back, one_bit, dropped, replaced, unscaled, negative_zero]


@pytest.mark.parametrize("script", [*CHANGES, hooked], ids=lambda script: script.__name__)
def test_a_script_that_changes_gradients_in_every_slot_is_found_out_in_the_rehearsal(script):
    steps = LEARNING + 2
    desk = Desk(tower())
    for right in expected(tower(), script, steps):
        desk.begin()
        assert desk.slot(script).tobytes() == right
    assert desk.given == [0] * steps
    assert not desk.arrivals.possible
    (said,) = desk.said
    assert "after backward has finished it" in said
    assert desk.broken == []


@pytest.mark.parametrize("script", [*CHANGES, twice], ids=lambda script: script.__name__)
def test_a_change_after_pieces_were_given_breaks_the_ring_and_ends_overlap(script):
    steps = LEARNING + 4
    changed = LEARNING + 1

    def sometimes(model: nn.Module, step: int) -> None:
        if step == changed:
            desk_looks.append(True)
            script(model, step)
        else:
            plain(model, step)

    desk_looks: list[bool] = []
    desk = Desk(tower())
    for step, right in enumerate(expected(tower(), sometimes, steps)):
        desk.begin()
        if step != changed:
            assert desk.slot(sometimes).tobytes() == right
            continue
        # the engine takes its pieces during the backward, as soon as they are there
        hook = desk.model[0].weight.register_post_accumulate_grad_hook(desk.look)
        held = desk.shared.early._buffer
        handed_in = desk.slot(sometimes)
        hook.remove()
        assert handed_in is not held
        assert handed_in.tobytes() == right, "what is reduced again is right"
        assert desk.broken == [7], "the links of that reduction's generation"
        assert "after backward has finished it" in desk.shared.early.spoilt
        with pytest.raises(LinkBroken, match="reduced again without"):
            desk.shared.early.ready(0)
    assert desk.given[LEARNING] > 0
    assert desk.given[changed + 1 :] == [0] * (steps - changed - 1)
    assert not desk.arrivals.possible
    assert len(desk.said) == 1


def test_a_change_before_any_piece_was_taken_breaks_nothing():
    desk = Desk(tower())
    rights = expected(tower(), lambda model, step: (clipped if step == LEARNING else plain)(model, step), LEARNING + 2)
    desk.looked = lambda: 0  # the engine is busy elsewhere
    for step, right in enumerate(rights):
        desk.begin()
        assert desk.slot(clipped if step == LEARNING else plain).tobytes() == right
    assert desk.broken == []
    assert desk.shared.early.spoilt == ""
    assert not desk.arrivals.possible


def test_gradients_that_come_now_and_then_are_not_given():
    def script(model: nn.Module, step: int) -> None:
        model.used = step % 3 == 0
        plain(model, step)

    steps = 3 * LEARNING
    desk = Desk(Scarce())
    for right in expected(Scarce(), script, steps):
        desk.begin()
        assert desk.slot(script).tobytes() == right
    assert desk.given == [0] * steps
    assert desk.arrivals.possible, "it may become steady yet"


def test_a_gradient_that_stays_away_for_once_holds_up_its_piece_and_what_follows():
    def script(model: nn.Module, step: int) -> None:
        model.used = step != LEARNING + 1
        plain(model, step)

    steps = 2 * LEARNING + 4
    desk = Desk(Scarce())
    for right in expected(Scarce(), script, steps):
        desk.begin()
        assert desk.slot(script).tobytes() == right
    usual = desk.given[LEARNING]
    assert 0 < desk.given[LEARNING + 1] < usual
    assert desk.given[LEARNING + 2 : LEARNING + 1 + STEADY] == [0] * (STEADY - 1), "learned anew"
    assert desk.given[-1] == usual
    assert desk.broken == []


def test_one_that_never_came_and_comes_is_noticed():
    def script(model: nn.Module, step: int) -> None:
        model.used = step == LEARNING + 1
        plain(model, step)

    desk = Desk(Scarce())
    rights = expected(Scarce(), script, LEARNING + 3)
    for step, right in enumerate(rights):
        desk.begin()
        if step == LEARNING + 1:
            desk.model.layers[0].weight.register_post_accumulate_grad_hook(desk.look)
        assert desk.slot(script).tobytes() == right
    assert desk.broken == [7]
    assert not desk.arrivals.possible


def test_no_hook_is_left_and_none_is_there_without_need():
    desk = Desk(tower(), when="off")
    desk.begin()
    desk.slot(plain)
    assert not desk.arrivals._hooks
    desk = Desk(tower())
    desk.begin()
    desk.slot(plain)
    assert len(desk.arrivals._hooks) == 12
    parameter = desk.model[0].weight
    assert parameter._post_accumulate_grad_hooks
    desk.arrivals.close()
    assert not parameter._post_accumulate_grad_hooks


def test_a_parameter_frozen_meanwhile_is_no_trouble():
    def script(model: nn.Module, step: int) -> None:
        model[3].requires_grad_(step < LEARNING + 1)
        plain(model, step)

    steps = 2 * LEARNING + 4
    desk = Desk(tower())
    for right in expected(tower(), script, steps):
        desk.begin()
        assert desk.slot(script).tobytes() == right
    assert desk.broken == []
    assert desk.given[-1] > 0
