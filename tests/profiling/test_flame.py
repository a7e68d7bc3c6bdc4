import pytest
from trace_kit import call, kernel, op, step, write

from helpers.profiling.flame import FlameError, flame_figure, flame_rows
from helpers.profiling.recordings import recorded_trace
from helpers.profiling.trace import read_trace


def small(tmp_path):
    events = [
        step(1, 1000, 1100),
        op("aten::linear", 1010, 1060),
        op("aten::mm", 1020, 1050),
        call("cudaLaunchKernel", 1030, 1040, correlation=1),
        op("aten::add", 1070, 1080, tid=2),
        kernel("void at::native::gemm<float>(int)", 1045, 1095, correlation=1),
    ]
    return read_trace(write(tmp_path / "small.json", events))


def test_rows_nest_calls_and_end_with_the_device(tmp_path):
    rows = flame_rows(small(tmp_path))
    assert [[name for _, _, name, _ in row.bars] for row in rows] == [
        ["ProfilerStep#1"],
        ["aten::linear"],
        ["aten::mm"],
        ["cudaLaunchKernel"],
        ["aten::add"],
        ["void at::native::gemm<float>(int)"],
    ]
    assert [row.label for row in rows] == ["thread 1", "", "", "", "thread 2", "device 0 stream 7"]
    assert rows[1].bars[0] == (pytest.approx(10e-6), pytest.approx(50e-6), "aten::linear", "operator")


def test_a_window_and_a_depth_cut(tmp_path):
    rows = flame_rows(small(tmp_path), window=(62e-6, 90e-6), depth=1)
    assert [row.bars[0][2] for row in rows] == ["ProfilerStep#1", "aten::add", "void at::native::gemm<float>(int)"]
    assert rows[1].bars[0][0] == pytest.approx(8e-6)
    with pytest.raises(FlameError, match="nothing happened"):
        flame_figure(small(tmp_path), window=(1.0, 2.0))


def test_words_stand_only_where_they_fit(tmp_path):
    figure = flame_figure(small(tmp_path))
    words = {text.get_text() for text in figure.axes[0].texts}
    assert {"ProfilerStep#1", "linear", "mm", "gemm"} <= words and "cudaLaunchKernel" not in words
    assert len(flame_figure(recorded_trace("h100_bert_small").trace).axes) == 1
