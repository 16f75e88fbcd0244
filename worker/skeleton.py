"""State dicts as bytes: every container and plain value by a closed table, tensors taken out, no pickle, no code run.

`Encoder.encode(value, path)` turns a nested value into one that `wire.pack` can pack; each tensor or numpy array on the
way is handed to `take` and only its number stays. `decode` is the reverse. A coded container is a list that begins
with its tag; values that msgpack knows by itself stand as they are:

    {"lr": 0.1, 3: (t, None)}   ->   ["d", "lr", 0.1, 3, ["t", ["T", 0], None]]

Types are matched exactly (`type(x) is int`): a subclass would come back as its base, which is not the same state.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from reknit.core import wire
from reknit.core.errors import StateError, WireError
from reknit.core.layout import ITEM_BYTES

_DEEPEST = 60  # five Python frames a level, and the caller has frames of its own
_FACTORIES: dict[str, Any] = {
    "None": None,
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "set": set,
}
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_HINT = "let state_dict() return tensors, arrays, None, bool, int, float, str, bytes in dict, list, tuple, set"


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's own name of a dtype without the `torch.`."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> torch.dtype:
    """Return the torch dtype of a name in `ITEM_BYTES`.

    Raises:
        StateError: not a name of a dtype that can travel.
    """
    dtype = getattr(torch, name, None) if name in ITEM_BYTES else None
    if not isinstance(dtype, torch.dtype):
        raise StateError(f"dtype {name!r} is not known to torch {torch.__version__}")
    return dtype


def check_tensor(tensor: torch.Tensor, path: str) -> None:
    """Check that a tensor's bits can travel.

    Raises:
        StateError: uninitialized, without data, sparse, quantized, of a subclass that holds more than its bits.
    """
    if type(tensor) not in _PLAIN:  # first: torch's instance checks of parameters take microseconds each
        if isinstance(tensor, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer)):
            raise StateError(f"{path} has no shape yet", hint="run one forward pass of the lazy module before track()")
        raise StateError(f"{path} is a {_type_name(tensor)}: only plain tensors can travel", hint=_HINT)
    if tensor.is_meta:
        raise StateError(f"{path} is on the meta device and has no data", hint="materialize the module before track()")
    if tensor.layout != torch.strided or tensor.is_quantized or dtype_name(tensor.dtype) not in ITEM_BYTES:
        raise StateError(f"{path} is {tensor.dtype} with layout {tensor.layout}, which cannot travel bit by bit")


class Encoder:
    """Encodes values; one for each capture of a state.

    Args:
        take: called with each tensor found and its path; returns the number that stands for it.
    """

    def __init__(self, take: Callable[[torch.Tensor, str], int]) -> None:
        self._take = take
        self._open: set[int] = set()

    def encode(self, value: Any, path: str) -> Any:  # noqa: PLR0911 - one return a kind reads best
        """Return `value` in coded form.

        Raises:
            StateError: something in it cannot travel; the text names its path and type.
        """
        kind = type(value)
        if value is None or kind is bool or kind is float or kind is bytes:
            return value
        if kind is int:
            return value if _SMALLEST <= value <= _LARGEST else ["i", str(value)]
        if kind is str:
            return value if _is_utf8(value) else ["u", value.encode("utf-8", "surrogatepass")]
        if isinstance(value, torch.Tensor):
            return ["T", self._take(value, path)]
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, np.generic) and value.dtype.kind not in "OV":
            return ["n", value.dtype.str, value.tobytes()]
        plain = _encode_atom(value)
        return plain if plain is not None else self._container(value, path)

    def _array(self, value: np.ndarray[Any, Any], path: str) -> Any:
        if type(value) is not np.ndarray or value.dtype.kind in "OV":
            raise StateError(f"{path} is a {_type_name(value)} of dtype {value.dtype}, which cannot travel", hint=_HINT)
        whole = value if value.flags.c_contiguous and value.flags.writeable else value.copy(order="C")
        raw = whole.reshape(-1).view(np.uint8) if whole.nbytes else np.empty(0, np.uint8)
        return ["N", value.dtype.str, list(value.shape), self._take(torch.from_numpy(raw), path)]

    def _container(self, value: Any, path: str) -> Any:
        if id(value) in self._open:
            raise StateError(f"{path} contains itself", hint=_HINT)
        if len(self._open) >= _DEEPEST:
            raise StateError(f"{path} is nested more than {_DEEPEST} deep")
        self._open.add(id(value))
        try:
            return self._open_container(value, path)
        finally:
            self._open.discard(id(value))

    def _open_container(self, value: Any, path: str) -> Any:  # noqa: PLR0911 - the same
        kind = type(value)
        if kind is dict:
            return ["d", *self._pairs(value, path)]
        if kind is list or kind is tuple:
            return ["l" if kind is list else "t", *self._items(value, path)]
        if kind is set or kind is frozenset:
            # sorted: strings iterate in another order in each process, and the skeleton shall be equal on all
            return ["s" if kind is set else "f", *sorted(self._items(value, path), key=wire.pack)]
        if kind is collections.OrderedDict:
            metadata = getattr(value, "_metadata", None)  # Module.state_dict() keeps its versions there
            return ["o", self.encode(metadata, f"{path}._metadata"), *self._pairs(value, path)]
        if kind is collections.Counter:
            return ["c", *self._pairs(value, path)]
        if kind is collections.deque:
            return ["q", value.maxlen, *self._items(value, path)]
        if kind is collections.defaultdict:
            for name, factory in _FACTORIES.items():
                if value.default_factory is factory:
                    return ["dd", name, *self._pairs(value, path)]
            raise StateError(f"{path} is a defaultdict of {value.default_factory!r}, which cannot travel", hint=_HINT)
        raise StateError(f"{path} is a {_type_name(value)}, which cannot travel", hint=_HINT)

    def _items(self, values: Iterable[Any], path: str) -> list[Any]:
        return [self.encode(value, f"{path}.{i}") for i, value in enumerate(values)]

    def _pairs(self, value: dict[Any, Any], path: str) -> list[Any]:
        coded: list[Any] = []
        for key, item in value.items():
            if isinstance(key, torch.Tensor):
                raise StateError(f"{path} has a tensor as a key, which cannot travel", hint=_HINT)
            coded += (self.encode(key, f"{path} (key)"), self.encode(item, f"{path}.{key}"))
        return coded


def decode(coded: Any, tensor: Callable[[int], torch.Tensor]) -> Any:
    """Return the value of a coded form.

    Args:
        coded: what `Encoder.encode` returned, or what it became after `wire.pack` and `wire.unpack`.
        tensor: gives a fresh tensor for its number.

    Raises:
        WireError: not a coded form.
    """
    if not isinstance(coded, list):
        return coded
    try:
        return _DECODERS[coded[0]](coded[1:], tensor)
    except StateError:
        raise
    except WireError:
        raise
    except Exception as error:  # anything may be wrong with foreign bytes; which constructor minds is of no interest
        raise WireError(f"bad state skeleton ({type(error).__name__}: {error})") from error


def _decode_array(rest: list[Any], tensor: Callable[[int], torch.Tensor]) -> np.ndarray[Any, Any]:
    name, shape, number = rest
    dtype = np.dtype(name)
    if dtype.kind in "OV":
        raise WireError(f"arrays of dtype {name} do not travel")
    raw = tensor(number).numpy()
    array: np.ndarray[Any, Any] = np.empty(shape, dtype)
    if array.nbytes != raw.nbytes:
        raise WireError(f"array of dtype {name} and shape {shape} does not fit {raw.nbytes} bytes")
    if array.nbytes:
        array.reshape(-1).view(np.uint8)[...] = raw
    return array


def _decode_scalar(rest: list[Any], _: Callable[[int], torch.Tensor]) -> Any:
    dtype = np.dtype(rest[0])
    if dtype.kind in "OV":
        raise WireError(f"numbers of dtype {dtype} do not travel")
    if dtype.itemsize == 0:
        return dtype.type()
    return np.frombuffer(rest[1], dtype=dtype, count=1)[0]


def _decode_pairs(rest: list[Any], tensor: Callable[[int], torch.Tensor]) -> list[tuple[Any, Any]]:
    if len(rest) % 2:
        raise WireError("a dict of the state skeleton has a key without a value")
    return [(decode(rest[i], tensor), decode(rest[i + 1], tensor)) for i in range(0, len(rest), 2)]


def _decode_ordered(rest: list[Any], tensor: Callable[[int], torch.Tensor]) -> Any:
    ordered: Any = collections.OrderedDict(_decode_pairs(rest[1:], tensor))
    if rest[0] is not None:
        ordered._metadata = decode(rest[0], tensor)  # noqa: SLF001 - where Module.load_state_dict looks for it
    return ordered


def _decode_counter(rest: list[Any], tensor: Callable[[int], torch.Tensor]) -> Any:
    counter: collections.Counter[Any] = collections.Counter()
    for key, count in _decode_pairs(rest, tensor):
        counter[key] = count
    return counter


_DECODERS: dict[str, Callable[[list[Any], Callable[[int], torch.Tensor]], Any]] = {
    "i": lambda rest, _: int(rest[0]),
    "u": lambda rest, _: rest[0].decode("utf-8", "surrogatepass"),
    "x": lambda rest, _: complex(rest[0], rest[1]),
    "b": lambda rest, _: bytearray(rest[0]),
    "T": lambda rest, tensor: tensor(rest[0]),
    "N": _decode_array,
    "n": _decode_scalar,
    "dtype": lambda rest, _: dtype_named(rest[0]),
    "device": lambda rest, _: torch.device(rest[0]),
    "size": lambda rest, _: torch.Size(rest),
    "l": lambda rest, tensor: [decode(x, tensor) for x in rest],
    "t": lambda rest, tensor: tuple(decode(x, tensor) for x in rest),
    "s": lambda rest, tensor: {decode(x, tensor) for x in rest},
    "f": lambda rest, tensor: frozenset(decode(x, tensor) for x in rest),
    "q": lambda rest, tensor: collections.deque((decode(x, tensor) for x in rest[1:]), maxlen=rest[0]),
    "d": lambda rest, tensor: dict(_decode_pairs(rest, tensor)),
    "o": _decode_ordered,
    "c": _decode_counter,
    "dd": lambda rest, tensor: collections.defaultdict(_FACTORIES[rest[0]], _decode_pairs(rest[1:], tensor)),
}


def _encode_atom(value: Any) -> list[Any] | None:
    kind = type(value)
    if kind is complex:
        return ["x", value.real, value.imag]
    if kind is bytearray:
        return ["b", bytes(value)]
    if kind is torch.dtype:
        return ["dtype", dtype_name(value)]
    if kind is torch.device:
        return ["device", str(value)]
    if kind is torch.Size:
        return ["size", *value]
    return None


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # lone surrogates, as in file names that are not UTF-8
        return False
    return True


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def size_of(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of a tensor."""
    return math.prod(shape) * ITEM_BYTES[dtype]
