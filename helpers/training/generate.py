"""Let a trained model continue a text, one byte at a time."""

import torch

from helpers.training.model import MiniLLM, ModelError


@torch.no_grad()
def complete(model: MiniLLM, prompt: str, length: int, temperature: float = 0.0, seed: int = 0) -> str:
    """`prompt` and `length` more bytes from the model, as text.

    temperature: 0 takes the likeliest byte each time; above it bytes are drawn from
    softmax(logits / temperature) with `seed`. The model sees the last `context` bytes. Bytes that
    are not UTF-8 appear as the replacement character.
    Raises `ModelError` for an empty prompt or a negative temperature.
    """
    if not prompt or temperature < 0:
        raise ModelError(
            f"cannot continue {prompt!r} at temperature {temperature}",
            mend="give at least one character, and a temperature of 0 or more",
        )
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    text = list(prompt.encode())
    for _ in range(length):
        window = torch.tensor([text[-model.config.context :]], device=device)
        logits = model(window)[0, -1].float().cpu()  # (V,)
        text.append(_choose(logits, temperature, generator))
    return bytes(text).decode("utf-8", errors="replace")


def _choose(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator))
