import pytest
from trace_kit import call, kernel, op, step, write

from helpers.profiling.recordings import recorded_trace
from helpers.profiling.replay import ReplayError, replay
from helpers.profiling.trace import read_trace


@pytest.mark.parametrize("name", ["h100_bert_small", "mi300x_compiled_block"])
def test_one_step_takes_what_was_recorded(name):
    trace = recorded_trace(name).trace
    columns = trace.columns
    host = columns.intervals(columns.of("cpu_op", "user_annotation"))
    end = max(columns.kernels.end.max(), host.end.max())
    assert replay(trace).seconds == pytest.approx((end - host.start.min()) / 1e9, rel=0.01)


def made(tmp_path, host, device, wait=0):
    """A step of `host` µs that launches one kernel of `device` µs after a fifth of it."""
    events = [
        step(1, 0, host + wait),
        op("aten::mm", 0, host + wait),
        call("cudaLaunchKernel", host / 5, host / 5 + 1, correlation=1),
        kernel("gemm", host / 5 + 2, host / 5 + 2 + device, correlation=1),
    ]
    if wait:
        events.append(call("cudaStreamSynchronize", host / 2, host / 2 + wait))
    return read_trace(write(tmp_path / f"{host}-{device}-{wait}.json", events))


def test_without_reading_the_slower_side_rules(tmp_path):
    slow_host, slow_device = made(tmp_path, 100, 50), made(tmp_path, 50, 100)
    assert replay(slow_host, 10).seconds == pytest.approx(10 * 100e-6)
    assert replay(slow_device, 10).seconds == pytest.approx((50 / 5 + 2 + 10 * 100) * 1e-6)
    assert replay(slow_device, 10).busy == pytest.approx(10 * 100e-6)


def test_reading_every_step_puts_host_and_device_one_after_the_other(tmp_path):
    trace = made(tmp_path, 50, 100)
    assert replay(trace, 10, read_every=1).step == pytest.approx((10 + 2 + 100) * 1e-6)
    loading = replay(trace, 10, before=80e-6, read_every=1)
    assert loading.step == pytest.approx((80 + 10 + 2 + 100) * 1e-6)
    assert loading.waited == pytest.approx(10 * (10 + 2 + 100 - 50) * 1e-6)
    hidden = replay(trace, 100, before=40e-6)
    assert hidden.step == pytest.approx(100e-6, rel=0.02) and hidden.waited == 0


def test_reading_less_often_is_never_slower_and_the_work_stays(tmp_path):
    trace = recorded_trace("mi300x_compiled_block").trace
    seconds = [replay(trace, 12, 5e-3, every).seconds for every in (1, 2, 3, 6, 12, 0)]
    assert seconds == sorted(seconds, reverse=True)
    assert len({replay(trace, 12, 5e-3, every).busy for every in (0, 1, 5)}) == 1


def test_recorded_waits_do_not_count_as_the_hosts_work(tmp_path):
    assert replay(made(tmp_path, 50, 10, wait=30)).seconds == pytest.approx(50e-6)


def test_a_replay_that_cannot_be_run_is_named(tmp_path):
    bare = read_trace(write(tmp_path / "bare.json", [op("aten::mm", 0, 10), kernel("gemm", 2, 8)]))
    with pytest.raises(ReplayError, match="no kernel whose launch"):
        replay(bare)
    with pytest.raises(ReplayError, match="at least 1"):
        replay(made(tmp_path, 50, 10), steps=0)
