"""PyTorch on the CPU, one operator after the other: what most people compare with."""

from collections.abc import Mapping

import numpy as np

from helpers.edge.decode import DecoderConfig
from helpers.edge.runtimes.runtime import Runtime, Session
from helpers.edge.runtimes.step import HostCache, step_module


class TorchSession(Session):
    """The step as a module; it reads only the part of the cache that is filled."""

    def __init__(self, config: DecoderConfig, parameters: Mapping[str, np.ndarray]):
        import torch

        super().__init__(config)
        self._cache = cache = HostCache(config, parameters)
        self._module = step_module(config, parameters)
        self._places, self._turns = torch.from_numpy(cache.places), torch.from_numpy(cache.turns)
        self._arrays = [torch.from_numpy(array) for pair in zip(cache.keys, cache.values) for array in pair]
        self._mask = torch.zeros(config.context + 1)

    def _step(self, token: int, place: int) -> np.ndarray:
        import torch

        with torch.inference_mode():
            logits, keys, values = self._module(
                torch.tensor([token]),
                self._places[place],
                self._turns[place],
                self._mask[: place + 1],
                *(cache[:, :place] for cache in self._arrays),
            )
        self._cache.keep(place, keys.numpy(), values.numpy())
        return logits.numpy()


RUNTIME = Runtime("PyTorch", ("torch",), "torch", "pip install torch", TorchSession)
