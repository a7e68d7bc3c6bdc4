"""What it costs to hand 256 MiB to a device, by alias, import and copy: prints a table, asserts nothing.

python benchmarks/handover.py [--driver lavapipe] [--rounds 9]

An alias is memory of the device that the host looks at; an import is memory of the host that the device takes; an
upload is a copy into memory of the device, and with staging it is two. The arrays are full, as weights are: their
pages have been touched. For scale: the same bytes copied by NumPy. A device that binds fewer bytes at once gets
several buffers.
"""

import argparse
from collections.abc import Callable

import numpy as np
from side_by_side import in_turns, ratio, spread, stamp

from helpers.edge.vulkan import Device, Memory, NoVulkan, driver, open_device, page_aligned
from helpers.measure import Samples, Table

NBYTES = 256 * 2**20


def main() -> None:
    """Time each way on one driver, or on lavapipe and SwiftShader."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--driver", action="append")
    arguments.add_argument("--rounds", type=int, default=9)
    asked = arguments.parse_args()
    print(stamp("numpy"))
    for name in asked.driver or ("lavapipe", "swiftshader"):
        try:
            device = open_device(driver=driver(name), validation=False)
        except NoVulkan as error:
            print(f"{name}: {error.mend}")
            continue
        with device:
            print(f"{device.info.name} · {device.info.driver}")
            print(table(in_turns(ways(device), asked.rounds)))
            print(f"counted by the device: {device.copies}")


def ways(device: Device) -> dict[str, Callable[[], object]]:
    """Each way to bring `NBYTES` to the device, by its name."""
    parts = -(-NBYTES // device.info.limits.storage_buffer_bytes)
    sources = [page_aligned(NBYTES // parts, np.uint8) for _ in range(parts)]
    for source in sources:
        source[:] = 1
    targets = [np.ones_like(source) for source in sources]
    aliased = [device.buffer(source.shape, source.dtype) for source in sources]
    private = [device.buffer(source.shape, source.dtype, Memory.DEVICE_LOCAL) for source in sources]

    def alias() -> None:
        for buffer in aliased:
            buffer.array()

    def take() -> None:
        for source in sources:
            device.import_array(source).free()

    def upload() -> None:
        for buffer, source in zip(aliased, sources):
            buffer.write(source)

    def stage() -> None:
        for buffer, source in zip(private, sources):
            buffer.write(source)

    def copy() -> None:
        for target, source in zip(targets, sources):
            target[:] = source

    found = {"alias": alias, "import": take, "upload": upload, "upload through staging": stage, "NumPy copy": copy}
    if reason := device.info.why_not("host_import"):
        print(f"import: {reason}")
        del found["import"]
    return found


def table(samples: dict[str, Samples]) -> Table:
    """Median, best and spread of each way, and its time over that of a copy by NumPy in the same round."""
    base = samples["NumPy copy"]
    rows = [(name, taken.median, taken.best, spread(taken), ratio(taken, base)) for name, taken in samples.items()]
    return Table(("256 MiB by", "median", "best", "spread", "over a copy"), tuple(rows))


if __name__ == "__main__":
    main()
