"""The same model through other people's runtimes: what ran, how exact it was, how fast, and what stopped the rest.

Each takes the parameters that the course's decoder takes, by the names of a PyTorch `state_dict` in fp32, and gives
a session with a cache. None is needed: one that is not installed says which line installs it.
"""

from helpers.edge.runtimes import executorch, iree, llama_cpp, mlx, torch_eager
from helpers.edge.runtimes.examine import Finding, bytes_per_token, examine, seconds_per_token, some_tokens
from helpers.edge.runtimes.recorded import RecordedRuntimes, RecordingError, read_recorded
from helpers.edge.runtimes.runtime import (
    ExportedOnly,
    NotInstalled,
    Runtime,
    RuntimesError,
    Session,
    Unsupported,
    Verdict,
)

RUNTIMES = (
    torch_eager.RUNTIME,
    llama_cpp.RUNTIME,
    mlx.RUNTIME,
    executorch.XNNPACK,
    iree.CPU,
    executorch.VULKAN,
    executorch.CORE_ML,
    iree.VULKAN,
)

__all__ = [
    "RUNTIMES",
    "ExportedOnly",
    "Finding",
    "NotInstalled",
    "RecordedRuntimes",
    "RecordingError",
    "Runtime",
    "RuntimesError",
    "Session",
    "Unsupported",
    "Verdict",
    "bytes_per_token",
    "examine",
    "read_recorded",
    "seconds_per_token",
    "some_tokens",
]
