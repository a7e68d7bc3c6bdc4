"""symptom: the input was changed

Records are marked as done.
"""

from helpers.profiling.kernel_names import same_kernel


def owner(program, launch):
    if launch.call == "cudaGraphLaunch":
        return None
    around = [
        at
        for at, one in enumerate(program.operators)
        if one.thread == launch.thread and one.start <= launch.start <= one.end
    ]
    return max(around, key=lambda at: program.operators[at].start, default=None)


def answer(program):
    kernels = program.kernels
    launches = {one.correlation: one for one in program.launches}

    def fits(at, record):
        return same_kernel(kernels[at].name, record.name) and kernels[at].grid == record.grid

    def when(at):
        return launches[kernels[at].correlation].start, kernels[at].start

    there = [record for record in program.report if any(fits(at, record) for at in range(len(kernels)))]
    order = sorted((at for at in range(len(kernels)) if any(fits(at, record) for record in there)), key=when)
    first = next(i for i in range(len(order)) if all(fits(at, one) for at, one in zip(order[i:], there)))
    places, found = iter(order[first:]), []
    for record in program.report:
        record.metrics["joined"] = 1.0
        at = next(places) if any(record is one for one in there) else None
        found.append((at, None if at is None else owner(program, launches[kernels[at].correlation])))
    return found
