"""Values cross as bytes and come back plain: nothing of the sender's code comes along."""

import json
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from labkit.checks import values
from labkit.checks.values import Opaque, pack, unpack
from labkit.errors import LabError


class Point(NamedTuple):
    x: int
    y: float


class Liar(float):
    def __eq__(self, other):
        return True

    def __float__(self):
        return 1.5


class LyingTensor(torch.Tensor):
    def __eq__(self, other):
        return torch.ones(3, dtype=torch.bool)


NUMBERS = [None, True, False, 0, -7, 2**200, 0.1, math.inf, -math.inf, "", "text ä"]
NESTED = [[], [1, [2, [3]]], (), (1, "a"), {}, {"a": 1, 2: [None]}, {("a", 1): 2}, {"nested": {"list": [1.5, (2,)]}}]


@pytest.mark.parametrize("value", [*NUMBERS, *NESTED])
def test_plain_values_return_equal_and_of_the_same_type(value):
    back = unpack(pack(value))
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize("dtype", list(values.dtypes().values()), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)], ids=str)
def test_tensors_return_bit_for_bit(dtype, shape):
    x = torch.randint(0, 2, (math.prod(shape) * dtype.itemsize,), dtype=torch.uint8).view(dtype).reshape(shape)
    back = unpack(pack({"x": x}))["x"]
    assert back.dtype == dtype and back.shape == x.shape and type(back) is torch.Tensor
    assert torch.equal(back.reshape(-1).view(torch.uint8), x.reshape(-1).view(torch.uint8))


def test_views_gradients_and_subclasses_arrive_as_plain_tensors():
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(unpack(pack(x.t())), x.t())
    assert not unpack(pack(x.clone().requires_grad_())).requires_grad
    back = unpack(pack(torch.tensor([1.0, 2.0, 3.0]).as_subclass(LyingTensor)))
    assert type(back) is torch.Tensor and back.tolist() == [1.0, 2.0, 3.0]
    a, b = unpack(pack([x, x]))
    a.fill_(1)
    assert torch.equal(b, x), "memory of its own"


def test_numbers_in_disguise_become_numbers():
    assert type(unpack(pack(Liar(0.25)))) is float
    assert unpack(pack([np.float64(2.5), np.int64(3), np.arange(3.0)]))[:2] == [2.5, 3]
    assert unpack(pack(np.arange(3.0))).tolist() == [0, 1, 2]
    assert unpack(pack(Point(1, 2.0))) == {"x": 1, "y": 2.0}


@pytest.mark.parametrize(
    "value", [object(), lambda: 0, {1, 2}, b"bytes", 2**300, torch.empty(3, device="meta"), np.array(["a"])]
)
def test_anything_else_says_what_it_was(value):
    assert isinstance(unpack(pack(value)), Opaque)


def test_deep_and_endless_values_end():
    endless: list = []
    endless.append(endless)
    assert isinstance(unpack(pack(endless)), list)


def test_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(values, "MAX_BYTES", 1000)
    with pytest.raises(LabError, match="too much"):
        pack(torch.zeros(1000))
    with pytest.raises(ValueError, match="2000 bytes"):
        unpack(b"x" * 2000)


def forged(tree, blob=b""):
    header = json.dumps(tree).encode()
    return len(header).to_bytes(8, "little") + header + blob


NO_HEADER = [b"", b"12345678", b"\xff" * 40, pack([1, 2])[:-1], pack(torch.zeros(3)) + b"x", pack(torch.zeros(3))[:-1]]
TREES = [{"array": 0}, {"object": "os.system"}, {"int": "1e999"}, {"float": "evil"}, [1], {"list": [1], "dict": []}]
TREES += [{"int": 7}, {"int": "9" * 4000}]


@pytest.mark.parametrize(
    "data",
    [
        *NO_HEADER,
        *map(forged, TREES),
        forged({"array": ["float32", [2**62]]}),
        forged({"array": ["float32", [-1]]}),
        forged({"array": ["object", [1]]}),
        forged({"array": ["uint8", [True]]}, b"x"),
        forged({"array": ["uint8", ""]}, b"x"),
        forged({"list": [{"array": ["uint8", [1]]}] * 2}, b"x"),
        forged(None, b"x"),
        forged({"dict": [[{"int": str(n * ((1 << 61) - 1))}, None] for n in range(values.SAME_HASH + 1)]}),
    ],
)
def test_forged_bytes_are_an_error_and_nothing_else(data):
    with pytest.raises(ValueError, match="not packed values"):
        unpack(data)


def test_as_many_values_as_can_be_read_in_a_moment(monkeypatch):
    monkeypatch.setattr(values, "MAX_ITEMS", 1000)
    assert unpack(pack(list(range(999)))) == list(range(999))
    with pytest.raises(LabError, match="use tensors"):
        pack(list(range(1000)))
    with pytest.raises(ValueError, match="more than 1000 values"):
        unpack(forged({"list": [None] * 1000}))
    with pytest.raises(ValueError, match="more than 1000 values"):  # before they are made
        unpack(forged({"list": [{"list": []}] * 2000}))


def test_keys_that_only_look_alike_are_no_attack():
    value = {n * 1024: n for n in range(5000)} | {(n, -n): n for n in range(5000)} | {n / 7: n for n in range(1, 5000)}
    assert unpack(pack(value)) == value
