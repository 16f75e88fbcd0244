"""State that travels is the same state: bits, names, containers, and how training goes on from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from reknit.core.errors import StateError, WireError
from reknit.core.layout import ITEM_BYTES, Layout
from reknit.worker.parts import span
from reknit.worker.skeleton import dtype_named
from reknit.worker.state import capture, copy_out, describe, digest, load, write
from reknit.worker.tracked import Tracked


def send(donor: Tracked, receiver: Tracked) -> Layout:
    """Take the donor's state over the wire format into the receiver."""
    layout = describe(donor)
    memory = bytearray(b"\xaa" * layout.total)
    copy_out(donor, layout, memory)
    load(receiver, Layout.decode(layout.encode()), bytes(memory))
    return layout


def flat(tracked: Tracked) -> tuple[Layout, bytes]:
    layout = describe(tracked)
    memory = bytearray(b"\x55" * layout.total)
    copy_out(tracked, layout, memory)
    return layout, bytes(memory)


def small(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def train(model: nn.Module, optimizer: Any, steps: int, *more: Any, seed: int = 0) -> None:
    for step in range(steps):
        torch.manual_seed(1000 * seed + step)

        x = torch.linspace(-1, 1, 18).view(6, 3) + step

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        for other in more:
            other.step()


# --------------------------------------------------------------------------------------------------------- modules


class EveryTensor(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        for name in ITEM_BYTES:
            dtype = dtype_named(name)
            for shape in ((), (0, 3), (5,), (3, 4)):
                raw = torch.randint(0, 256, (*shape, ITEM_BYTES[name]), dtype=torch.uint8)
                if dtype is torch.bool:
                    raw = raw % 2
                value = raw.view(dtype).reshape(shape) if raw.numel() else torch.empty(shape, dtype=dtype)
                self.register_buffer(f"{name}_{len(shape)}_{value.numel()}", value)
        self.turned = nn.Parameter(torch.randn(4, 3).t())
        self.strided = nn.Parameter(torch.randn(10)[::2])
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)
        self.channels_last = nn.Parameter(torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last))
        self.register_buffer("expanded", torch.randn(1, 3).expand(2, 3))
        self.register_buffer("conjugated", torch.randn(2, dtype=torch.complex64).conj())
        self.register_buffer("nothing", None)


def raw(tensor: torch.Tensor) -> bytes:
    whole = tensor.detach().resolve_conj().contiguous().view(-1)
    return whole.view(torch.uint8).numpy().tobytes() if whole.numel() else b""


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_and_form_keeps_its_bits() -> None:
    donor, receiver = EveryTensor(1), EveryTensor(2)
    layout = send(Tracked(model=donor), Tracked(model=receiver))
    theirs = {**dict(donor.named_parameters()), **dict(donor.named_buffers())}
    ours = {**dict(receiver.named_parameters()), **dict(receiver.named_buffers())}
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert ours[name].shape == tensor.shape, name
        assert raw(ours[name]) == raw(tensor), name
    assert not receiver.frozen.requires_grad
    assert all(entry.offset % 64 == 0 for entry in layout.entries)


def test_the_flat_bytes_do_not_depend_on_what_the_memory_held() -> None:
    tracked = Tracked(model=small(0))
    layout = describe(tracked)
    first, second = bytearray(b"\x00" * layout.total), bytearray(b"\xff" * layout.total)
    copy_out(tracked, layout, first)
    copy_out(tracked, layout, second)
    assert first == second


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_part_is_what_lies_there_in_the_whole() -> None:
    model = EveryTensor(3)
    optimizer = torch.optim.Adam([model.turned, model.strided, model.channels_last])
    sum(p.sum() for p in (model.turned, model.strided, model.channels_last)).backward()
    optimizer.step()
    tracked = Tracked(model=model, optimizer=optimizer)
    layout, whole = flat(tracked)
    captured = capture(tracked)
    spans = [span(layout.total, part, parts) for parts in (1, 2, 3, 4, 7, 50) for part in range(parts)]
    spans += [(first, first + 64) for first in range(0, layout.total, 64)]
    for first, end in spans:
        memory = bytearray(b"\xaa" * (end - first))
        write(captured, memory, first, end)
        assert bytes(memory) == whole[first:end], (first, end)
    with pytest.raises(StateError, match="holds 63 bytes"):
        write(captured, bytearray(63), 64, 128)


def test_parameters_are_changed_in_place_and_keep_their_gradients() -> None:
    donor, receiver = small(1), small(2)
    receiver(torch.randn(4, 3)).sum().backward()
    before = {name: (id(p), p.grad.clone()) for name, p in receiver.named_parameters() if p.grad is not None}
    send(Tracked(model=donor), Tracked(model=receiver))
    for name, parameter in receiver.named_parameters():
        assert id(parameter) == before[name][0]
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, before[name][1])


class Counting(nn.Module):
    """Assigns its buffers anew in forward, as many models do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(1), persistent=False)
        self.register_buffer("late", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        self.mean = torch.cat([self.mean, x.mean().view(1)])
        self.late = x.detach().sum()
        if not hasattr(self, "lazy"):
            self.register_buffer("lazy", x.detach().clone(), persistent=False)
        return self.norm(x)


def test_buffers_assigned_in_forward_reach_a_joiner() -> None:
    donor, receiver = Counting(), Counting()
    for i in range(30):
        torch.manual_seed(i)
        donor(torch.randn(4, 3))
    send(Tracked(model=donor), Tracked(model=receiver))
    for name, buffer in donor.named_buffers():
        assert torch.equal(dict(receiver.named_buffers())[name], buffer), name
    assert receiver.count.item() == 30
    assert receiver.mean.shape == (31,)
    assert receiver._non_persistent_buffers_set == {"mean", "lazy"}
    receiver(torch.randn(4, 3))


def test_tied_weights_travel_once_and_stay_tied() -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model[1].weight = model[0].weight
        return model

    donor, receiver = tied(), tied()
    layout = send(Tracked(model=donor, same=donor), Tracked(model=receiver, same=receiver))
    assert len(layout.entries) == 3
    assert receiver[1].weight is receiver[0].weight
    assert torch.equal(receiver[0].weight, donor[0].weight)
    assert layout.signature == (
        "model.0.weight float32 (4, 4)",
        "model.0.bias float32 (4,)",
        "model.1.bias float32 (4,)",
    )


def test_a_tie_that_only_the_receiver_has_is_refused() -> None:
    donor = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    receiver = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    receiver[1].weight = receiver[0].weight
    with pytest.raises(StateError, match=r"model\.1\.weight is tied"):
        send(Tracked(model=donor), Tracked(model=receiver))


class Remembering(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.seen: dict[str, Any] = {}

    def get_extra_state(self) -> Any:
        return {"seen": self.seen, "tensor": torch.arange(3)}

    def set_extra_state(self, state: Any) -> None:
        self.seen = state["seen"]
        assert torch.equal(state["tensor"], torch.arange(3))


def test_extra_state_of_modules_travels() -> None:
    donor, receiver = nn.Sequential(Remembering()), nn.Sequential(Remembering())
    donor[0].seen = {"words": ("a", 2**70)}
    send(Tracked(model=donor), Tracked(model=receiver))
    assert receiver[0].seen == {"words": ("a", 2**70)}


@pytest.mark.parametrize(
    ("donor", "receiver", "text"),
    [
        (nn.Linear(2, 3), nn.Linear(3, 2), r"model\.weight is float32 \(2, 3\) here and float32 \(3, 2\)"),
        (nn.Linear(2, 3), nn.Linear(2, 3).bfloat16(), r"model\.weight is bfloat16"),
        (nn.Linear(2, 3), nn.Linear(2, 3, bias=False), r"model\.bias is None here only"),
        (nn.Linear(2, 3, bias=False), nn.Linear(2, 3), r"model\.bias is None in the state only"),
        (nn.Sequential(nn.Linear(2, 3)), nn.Linear(2, 3), r"the state has no model\.weight"),
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), nn.Sequential(nn.Linear(2, 3)), r"has model\.1\.weight"),
    ],
)
def test_another_model_is_refused_before_anything_changes(donor: nn.Module, receiver: nn.Module, text: str) -> None:
    before = {name: p.clone() for name, p in receiver.named_parameters()}
    with pytest.raises(StateError, match=text):
        send(Tracked(model=donor), Tracked(model=receiver))
    assert all(torch.equal(p, before[name]) for name, p in receiver.named_parameters())


def test_other_tracked_names_are_refused() -> None:
    with pytest.raises(StateError, match=r"holds \['model'\], tracked here are \['net'\]"):
        send(Tracked(model=small(0)), Tracked(net=small(0)))


def test_lazy_and_meta_modules_are_refused_by_name() -> None:
    with pytest.raises(StateError, match=r"model\.weight has no shape yet"):
        describe(Tracked(model=nn.LazyLinear(3)))
    with pytest.raises(StateError, match=r"model\.weight is on the meta device"):
        describe(Tracked(model=nn.Linear(2, 2, device="meta")))


def test_what_cannot_be_tracked_is_refused() -> None:
    with pytest.raises(StateError, match="history is a list"):
        Tracked(history=[])
    tracked = Tracked(model=small(0))
    with pytest.raises(StateError, match="model is tracked already"):
        tracked.add(model=small(1))
    with pytest.raises(StateError, match="not a name"):
        tracked.add(**{"a.b": small(1)})


def test_an_optimizer_over_untracked_tensors_is_refused() -> None:
    model, hidden = small(0), nn.Linear(2, 5)
    optimizer = torch.optim.SGD([*model.parameters(), *hidden.parameters()], lr=0.1)
    with pytest.raises(StateError, match=r"no tracked module: group 0, number 6, float32 \(5, 2\)"):
        describe(Tracked(model=model, optimizer=optimizer))


# ------------------------------------------------------------------------------------------------------ optimizers


def two_groups(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        [
            {"params": model[0].parameters(), "lr": 0.05, "weight_decay": 0.1},
            {"params": [*model[1].parameters(), *model[3].parameters()]},
        ],
        lr=0.01,
        **options,
    )


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adamw-2-groups": two_groups,
    "adamw-amsgrad": lambda m: two_groups(m, amsgrad=True),
    "adamw-foreach": lambda m: two_groups(m, foreach=True),
    "adam-tensor-lr": lambda m: torch.optim.Adam(m.parameters(), lr=torch.tensor(0.01)),
    "lbfgs": lambda m: torch.optim.LBFGS(m.parameters(), lr=0.5, max_iter=3, history_size=4),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.01),
    "adadelta": lambda m: torch.optim.Adadelta(m.parameters()),
    "adamax": lambda m: torch.optim.Adamax(m.parameters()),
    "nadam": lambda m: torch.optim.NAdam(m.parameters()),
    "radam": lambda m: torch.optim.RAdam(m.parameters()),
    "asgd": lambda m: torch.optim.ASGD(m.parameters()),
    "rprop": lambda m: torch.optim.Rprop(m.parameters()),
    "adafactor": lambda m: torch.optim.Adafactor(m.parameters()),
}


@pytest.mark.parametrize("receiver_steps", [0, 3], ids=["fresh", "used"])
@pytest.mark.parametrize("steps", [0, 1, 10])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(name: str, steps: int, receiver_steps: int) -> None:
    donor, receiver = small(1), small(2)
    theirs, ours = OPTIMIZERS[name](donor), OPTIMIZERS[name](receiver)
    train(donor, theirs, steps)
    train(receiver, ours, receiver_steps, seed=5)
    a, b = Tracked(model=donor, optimizer=theirs), Tracked(model=receiver, optimizer=ours)
    untouched = flat(a)
    assert digest(a) != digest(b)
    send(a, b)
    assert digest(a) == digest(b)
    assert flat(a) == untouched
    assert flat(b) == untouched
    for _ in range(2):
        train(donor, theirs, 2, seed=9)
        train(receiver, ours, 2, seed=9)
        assert flat(a)[1] == flat(b)[1]
        assert digest(a) == digest(b)


def test_options_of_the_groups_travel() -> None:
    donor, receiver = small(1), small(1)
    theirs, ours = two_groups(donor), two_groups(receiver)
    theirs.param_groups[0].update(lr=0.3, weight_decay=0.7, betas=(0.1, 0.2))
    send(Tracked(m=donor, o=theirs), Tracked(m=receiver, o=ours))
    assert ours.state_dict()["param_groups"] == theirs.state_dict()["param_groups"]


def test_full_precision_state_of_half_parameters_keeps_its_bits() -> None:
    def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Linear(4, 4).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            optimizer.state[parameter] = {"master": torch.randn(parameter.shape), "count": 3}
        return model, optimizer

    (donor, theirs), (receiver, ours) = build(1), build(2)
    send(Tracked(m=donor, o=theirs), Tracked(m=receiver, o=ours))
    for a, b in zip(donor.parameters(), receiver.parameters(), strict=True):
        assert ours.state[b]["master"].dtype == torch.float32
        assert torch.equal(ours.state[b]["master"], theirs.state[a]["master"])


def test_loaded_optimizer_state_does_not_hang_on_the_memory() -> None:
    donor, receiver = small(1), small(2)
    theirs, ours = two_groups(donor), two_groups(receiver)
    train(donor, theirs, 2)
    a, b = Tracked(m=donor, o=theirs), Tracked(m=receiver, o=ours)
    layout, data = flat(a)
    memory = bytearray(data)
    load(b, layout, memory)
    memory[:] = bytes(len(memory))
    assert digest(a) == digest(b)


def test_an_optimizer_with_other_groups_is_refused() -> None:
    donor, receiver = small(1), small(2)
    with pytest.raises(StateError, match="o did not take its state"):
        send(
            Tracked(m=donor, o=two_groups(donor)),
            Tracked(m=receiver, o=torch.optim.AdamW(receiver.parameters())),
        )


# ----------------------------------------------------------------------------------------------- everything else


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [1, 3, 3]),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=40),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "linear": lr_scheduler.LinearLR,
    "polynomial": lr_scheduler.PolynomialLR,
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.StepLR(o, 2)], milestones=[3]
    ),
    "chained": lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.StepLR(o, 2), lr_scheduler.StepLR(o, 3)]),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, swa_lr=0.05),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_go_on_alike(name: str) -> None:
    donor, receiver = small(1), small(2)
    theirs, ours = two_groups(donor), two_groups(receiver)
    their_schedule, our_schedule = SCHEDULERS[name](theirs), SCHEDULERS[name](ours)
    train(donor, theirs, 4, their_schedule)
    a = Tracked(m=donor, o=theirs, s=their_schedule)
    b = Tracked(m=receiver, o=ours, s=our_schedule)
    send(a, b)
    for _ in range(5):
        train(donor, theirs, 1, their_schedule)
        train(receiver, ours, 1, our_schedule)
        assert [g["lr"] for g in theirs.param_groups] == [g["lr"] for g in ours.param_groups]
        assert flat(a)[1] == flat(b)[1]


def test_plateau_scheduler_and_scaler_travel() -> None:
    donor, receiver = small(1), small(1)
    theirs, ours = two_groups(donor), two_groups(receiver)
    plateau, other = lr_scheduler.ReduceLROnPlateau(theirs, patience=1), lr_scheduler.ReduceLROnPlateau(ours)
    for loss in (3.0, 2.0, 2.5, 2.5, 2.5):
        plateau.step(loss)
    scaler, other_scaler = torch.amp.GradScaler("cpu", init_scale=512.0), torch.amp.GradScaler("cpu")
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    send(
        Tracked(m=donor, o=theirs, p=plateau, g=scaler, d=disabled),
        Tracked(m=receiver, o=ours, p=other, g=other_scaler, d=disabled),
    )
    assert other.state_dict() == plateau.state_dict()
    assert other_scaler.get_scale() == 512.0


def test_averaged_model_travels() -> None:
    def build(seed: int) -> tuple[nn.Module, torch.optim.swa_utils.AveragedModel]:
        model = small(seed)
        return model, torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
        )

    (donor, theirs), (receiver, ours) = build(1), build(2)
    for i in range(4):
        with torch.no_grad():
            for parameter in donor.parameters():
                parameter.add_(i)
        theirs.update_parameters(donor)
    a, b = Tracked(m=donor, ema=theirs), Tracked(m=receiver, ema=ours)
    send(a, b)
    theirs.update_parameters(donor)
    ours.update_parameters(receiver)
    assert digest(a) == digest(b)


class Custom:
    """An object of the user's own, with tensors and containers in it."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.tensor = torch.full((2, 2), float(value))

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "tensor": self.tensor, ("key", 1): [{self.value}, None]}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        assert state["key", 1] == [{state["value"]}, None]
        self.value, self.tensor = state["value"], state["tensor"]


class Broken(Custom):
    def load_state_dict(self, state: dict[Any, Any]) -> None:
        raise KeyError("nope")


def test_custom_objects_travel_and_their_errors_are_named() -> None:
    receiver = Custom(2)
    send(Tracked(thing=Custom(7)), Tracked(thing=receiver))
    assert receiver.value == 7
    assert torch.equal(receiver.tensor, torch.full((2, 2), 7.0))
    with pytest.raises(StateError, match=r"thing did not take its state \(KeyError: 'nope'\)"):
        send(Tracked(thing=Custom(7)), Tracked(thing=Broken(1)))


def test_nothing_tracked_is_a_state_too() -> None:
    layout = send(Tracked(), Tracked())
    assert layout.total == 0


# ---------------------------------------------------------------------------------------------------- the contract


def test_only_what_an_optimizer_step_changes_is_steady() -> None:
    model = small(0)
    optimizer = two_groups(model)
    train(model, optimizer, 1)
    captured = capture(Tracked(m=model, o=optimizer, c=Custom(1)))
    steady = {entry.path for entry, s in zip(captured.layout.entries, captured.steady, strict=True) if s}
    assert all(p.startswith("o.") or p.endswith((".weight", ".bias")) for p in steady)
    rest = {entry.path for entry in captured.layout.entries} - steady
    assert rest == {"m.1.running_mean", "m.1.running_var", "m.1.num_batches_tracked", "c.tensor"}


def test_a_state_that_changed_its_form_is_not_copied() -> None:
    model = small(0)
    optimizer = two_groups(model)
    tracked = Tracked(m=model, o=optimizer)
    layout = describe(tracked)
    train(model, optimizer, 1)
    with pytest.raises(StateError, match="changed its form"):
        copy_out(tracked, layout, bytearray(layout.total))
    with pytest.raises(StateError, match="memory holds 10 bytes"):
        copy_out(tracked, describe(tracked), bytearray(10))


def test_damaged_layouts_are_named_errors() -> None:
    tracked = Tracked(m=small(0))
    layout, data = flat(tracked)
    with pytest.raises(WireError):
        Layout.decode(layout.encode()[:-3])
    first = layout.entries[0]
    for entry, text in [
        (_moved(first, 64), "outside its place"),
        (_moved(first, 32), "outside its place"),
    ]:
        bad = Layout(
            entries=(entry, *layout.entries[1:]),
            skeleton=layout.skeleton,
            total=layout.total,
            signature=layout.signature,
        )
        with pytest.raises(StateError, match=text):
            load(tracked, bad, data)
    with pytest.raises((WireError, StateError)):
        load(tracked, Layout(entries=layout.entries, skeleton=b"\x93\x01\x02\x03", total=layout.total), data)


def _moved(entry: Any, offset: int) -> Any:
    return type(entry)(entry.path, entry.dtype, entry.shape, offset, entry.size)


def test_parameters_and_buffers_are_listed_in_the_layouts_order() -> None:
    model = small(0)
    tracked = Tracked(model=model)
    names = [name for name, _ in (*tracked.parameters(), *tracked.buffers())]
    assert names == [entry.path for entry in describe(tracked).entries]
    assert tracked.signature() == describe(tracked).signature
