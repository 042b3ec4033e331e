"""The average finds its tensors anew at each update, each of them once."""

import torch
from torch import nn

from ssl_toolkit import EMA


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("seen", torch.zeros(1))


def test_shared_weights_are_averaged_once() -> None:
    module = Tied()
    nn.init.zeros_(module.first.weight)
    ema = EMA(module, 0.5)
    nn.init.ones_(module.first.weight)
    ema.update(module)
    assert isinstance(ema.module, Tied)
    assert ema.module.first.weight.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert ema.module.second.weight is ema.module.first.weight


def test_a_replaced_buffer_is_the_one_that_counts() -> None:
    for average_buffers, expected in ((False, [1.0, 3.0]), (True, [0.5, 1.75])):
        module = Tied()
        ema = EMA(module, 0.5, average_buffers)
        result = []
        for value in (1.0, 3.0):
            module.seen = torch.full((1,), value)
            ema.update(module)
            result.append(float(ema.module.seen))
        assert result == expected


def test_another_module_may_be_followed() -> None:
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    ema = EMA(first, 0.0)
    for module in (first, second, first):
        ema.update(module)
        assert torch.equal(ema.module.weight, module.weight)
