"""Tokens a second of one model: the course's shaders in four precisions beside PyTorch, on the same cores.

python benchmarks/decode.py [--driver lavapipe] [--rounds 15] [--width 512] [--blocks 4] [--length 64]

A step is one token with `length` others in the cache, its logits back on the host. All candidates are timed in the
same rounds, in turns; PyTorch on one thread and on all, for its threads wait for one another where other work
runs, too. PyTorch decodes with a cache too, written here from the model's own modules and compared
with its whole-sequence forward. The bandwidth roof is STREAM's triad on the cores that torch uses. llama.cpp serves
another model; where it is installed its tokens a second are that of its own model and prompt:
pip install llama-cpp-python (and --gguf FILE).
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import side_by_side
import torch
from torch.nn import functional as F

from helpers.edge import decode_reference
from helpers.edge.decode import Decoder, DecoderConfig, Precision, rate, serving_tensors, share_of_roof
from helpers.edge.vulkan import Device, driver, open_device
from helpers.edge.weights import open_weights, write_weights
from helpers.hardware.roofs import triad_roof
from helpers.measure import Quantity, Table, measured, predicted
from helpers.training.model import MiniLLM, ModelConfig, build_model, turn


def main() -> None:
    """Print one table, after all candidates were compared with float64."""
    asked = _arguments()
    print(side_by_side.stamp("numpy", "llama-cpp-python"))
    made = build_model(
        ModelConfig(asked.width, asked.blocks, asked.width // 64, 2 * asked.length, gated=True, rotary=True), 0
    )
    roof = triad_roof(64).rate
    print(f"bandwidth roof {roof}; {sum(p.numel() for p in made.parameters()) / 1e6:.1f} M parameters")
    with (
        tempfile.TemporaryDirectory() as folder,
        open_device(driver=driver(asked.driver), validation=False) as device,
    ):
        print(device.info.name, device.info.driver)
        tokens = np.random.default_rng(0).integers(0, made.config.vocab, asked.length + 1).tolist()
        steps, nbytes = _ours(device, made, tokens, Path(folder))
        for threads in sorted({1, torch.get_num_threads()}):
            name = f"PyTorch fp32, threads {threads}"
            steps[name], nbytes[name] = _torch(made, tokens, threads), nbytes["fp32"]
        samples = side_by_side.in_turns(steps, asked.rounds)
        rows, theirs = [], [name for name in samples if name.startswith("PyTorch")]
        best = min(theirs, key=lambda name: samples[name].median.value)
        for name, taken in samples.items():
            seconds = taken.median.value
            share = share_of_roof(nbytes[name], seconds, roof)
            over = side_by_side.ratio(samples[best], taken)
            rows.append((name, rate(seconds), nbytes[name], share, over, side_by_side.spread(taken)))
    print(Table(("", "tokens", "bytes a token", "of the roof", "over the best PyTorch", "spread"), tuple(rows)))
    _llama(asked.gguf, asked.length)


def _ours(
    device: Device, made: MiniLLM, tokens: list[int], folder: Path
) -> tuple[dict[str, Callable], dict[str, Quantity]]:
    config = DecoderConfig.like(made.config)
    parameters = {name: value.numpy() for name, value in made.state_dict().items()}
    steps, nbytes = {}, {}
    for precision in Precision:
        path = write_weights(folder / precision, config, serving_tensors(config, parameters, precision))
        start = time.perf_counter()
        decoder = Decoder(device, open_weights(path))
        print(
            f"{precision}: ready after {measured(time.perf_counter() - start, 's')}, copied {decoder.copied_bytes} B"
        )
        logits = decoder.prefill(tokens)
        truth = decode_reference.logits(config, decode_reference.rounded(parameters, precision), tokens)
        assert np.abs(logits - truth[-1]).max() <= decode_reference.tolerance(config, truth), precision
        steps[precision.value], nbytes[precision.value] = _again(decoder, len(tokens)), decoder.bytes_per_token()
    return steps, nbytes


def _again(decoder: Decoder, length: int) -> Callable[[], object]:
    """The same step each time: the cache is cut back to where it was."""

    def step() -> None:
        decoder.rewind(length - 1)
        decoder.step(7)

    return step


def _torch(made: MiniLLM, tokens: list[int], threads: int) -> Callable[[], object]:
    """One token with a cache, in PyTorch, after its logits were compared with the whole sequence's."""
    heads, width = made.config.heads, made.config.head_width
    caches = [[torch.empty(1, 0, heads, width) for _ in range(2)] for _ in made.blocks]

    def forward(token: int, keep: bool) -> torch.Tensor:
        place = caches[0][0].shape[1]
        x = made.token(torch.tensor([[token]]))
        for block, cache in zip(made.blocks, caches):
            normed, attention = block.attention_norm(x), block.attention
            q, k, v = (p(normed).view(1, 1, -1, width) for p in (attention.query, attention.key, attention.value))
            q, k = (turn(F.pad(y, (0, 0, 0, 0, place, 0)))[:, -1:] for y in (q, k))
            keys, values = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
            if keep:
                cache[:] = keys, values
            mixed = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, keys, values)))
            x = x + attention.out(mixed.transpose(1, 2).reshape(1, 1, -1))
            x = x + block.ffn(block.ffn_norm(x))
        return made.head(made.norm(x))[0, 0]

    with torch.inference_mode():
        for token in tokens[:-1]:
            forward(token, keep=True)
        last, whole = forward(tokens[-1], keep=False), made(torch.tensor([tokens]))[0, -1]
    assert torch.allclose(last, whole, atol=1e-4)

    def step() -> None:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            forward(7, keep=False).numpy()

    return step


def _llama(gguf: str, length: int) -> None:
    """llama.cpp on a model of its own, or why not."""
    try:
        from llama_cpp import Llama
    except ImportError:
        return print("llama.cpp: not installed here: pip install llama-cpp-python")
    if not gguf:
        return print("llama.cpp: pass --gguf FILE")
    llm = Llama(gguf, n_ctx=2 * length, verbose=False)
    llm.eval(list(range(1, length)))
    start = time.perf_counter()
    for token in range(1, 17):
        llm.eval([token])
    nbytes = predicted(Path(gguf).stat().st_size, "B", "the file")
    return print(f"llama.cpp on {Path(gguf).name}: {rate((time.perf_counter() - start) / 16)}, {nbytes} a token")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", default="lavapipe")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--gguf", default="")
    return parser.parse_args()


if __name__ == "__main__":
    main()
