"""A recording is whole or absent, says what was live, and comes back with its stamp."""

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import cli
from helpers.course import record as recording
from helpers.course.bundle import Bundle, BundleError, Number, Part, read_bundle, write_bundle
from helpers.course.record_kernels import WORKLOADS, run
from helpers.hardware import load_target
from helpers.measure import Origin

PARTS = (
    Part("roofs", True, numbers=(Number("triad", 1.5e10, "B/s"),), detail={"cautions": []}),
    Part("metal", False, "this machine has no Apple GPU"),
)
BUNDLE = Bundle("cpu", "a CPU", "2026-12-01T10:00:00+00:00", "0" * 40, False, "Linux", {"torch": "2.13.0"}, PARTS)


def test_what_is_written_comes_back(tmp_path):
    path = write_bundle(BUNDLE, tmp_path / "deep/er/bundle.json")
    assert read_bundle(path) == BUNDLE
    assert list(path.parent.iterdir()) == [path], "no draft stays behind"


def test_replayed_numbers_say_where_they_were_recorded():
    [(name, quantity)] = BUNDLE.quantities("roofs").items()
    assert (name, quantity.value, quantity.unit) == ("triad", 1.5e10, "B/s")
    assert quantity.origin is Origin.RECORDED and quantity.source == "a CPU, 2026-12-01, torch 2.13.0"


def test_a_part_that_was_not_live_gives_its_reason():
    with pytest.raises(BundleError, match="metal was not recorded: this machine has no Apple GPU"):
        BUNDLE.quantities("metal")
    with pytest.raises(BundleError, match="the parts are roofs, metal"):
        BUNDLE.part("counters")
    assert "roofs     live" in BUNDLE.receipt() and "not recorded: this machine" in BUNDLE.receipt()


def test_a_number_that_is_not_finite_is_not_written(tmp_path):
    bad = replace(BUNDLE, parts=(Part("roofs", True, numbers=(Number("triad", math.nan, "B/s"),)),))
    with pytest.raises(BundleError, match="not finite"):
        write_bundle(bad, tmp_path / "bundle.json")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(BundleError, match="cannot be written"):
        write_bundle(BUNDLE, tmp_path / "file/bundle.json")


@given(st.data())
def test_a_damaged_file_is_whole_or_an_error(tmp_path_factory, data):
    """Cut anywhere, or with any one entry replaced: the same bundle, or a named error."""
    path = write_bundle(BUNDLE, tmp_path_factory.mktemp("bundle") / "bundle.json")
    text = path.read_text()
    if data.draw(st.booleans(), "cut"):
        path.write_text(text[: data.draw(st.integers(0, len(text) - 3))])
    else:
        content = json.loads(text)
        key = data.draw(st.sampled_from(["parts", "version", "surprise"]))
        content[key] = data.draw(st.sampled_from([None, 7, "x", [3], [{}], {"a": 1}]))
        path.write_text(json.dumps(content))
    with pytest.raises(BundleError):
        read_bundle(path)


def test_one_part_that_fails_does_not_cost_the_others(monkeypatch):
    def broken(target):
        raise ZeroDivisionError("by a kernel of no length")

    monkeypatch.setitem(recording.PARTS, "roofs", broken)
    monkeypatch.setitem(recording.PARTS, "trace", lambda target: ([Number("busy", 50.0, "%")], {}))
    bundle = recording.record(load_target("cpu"), ["roofs", "trace"])
    first, second = bundle.parts
    assert not first.live and first.why == "ZeroDivisionError: by a kernel of no length"
    assert second.live and second.numbers == (Number("busy", 50.0, "%"),)


def test_this_machine_records_what_it_has_and_says_what_it_has_not(tmp_path, capsys):
    path = tmp_path / "here.json"
    assert cli.main(["record", "--target", "cpu", "--only", "trace", "counters", "metal", "--out", str(path)]) == 0
    bundle = read_bundle(path)
    assert [part.name for part in bundle.parts] == ["trace", "counters", "metal"]
    assert bundle.part("trace").numbers and "trace" in bundle.part("trace").detail
    assert "hardware counters are NVIDIA's" in capsys.readouterr().out


def test_the_trace_of_a_recording_is_a_trace_again():
    from helpers.profiling.breakdown import breakdown
    from helpers.profiling.distilled import restore_trace

    numbers, detail = recording.PARTS["trace"](load_target("cpu"))
    again = breakdown(restore_trace(json.loads(json.dumps(detail["trace"]))))
    busy = next(number.value for number in numbers if "busy" in number.name)
    assert 100 * again.busy_share == pytest.approx(busy, abs=0.5)


def test_a_target_that_this_machine_is_not_is_refused(capsys):
    if torch.cuda.device_count() >= 4:
        pytest.skip("this machine has four GPUs")
    assert cli.main(["record", "--target", "cuda-4"]) == 2
    assert "needs cuda" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "norm, compiled"])
def test_every_workload_runs(name):
    result = run(name, "cpu", 64, 1)
    assert result.isfinite().all()


def test_the_written_out_norm_is_an_rms_norm():
    x = torch.randn(8, 64)
    torch.manual_seed(0)
    found = WORKLOADS["norm, eager"](torch, "cpu", 64)()
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    torch.testing.assert_close(found, torch.nn.functional.rms_norm(x, (64,), eps=1e-6))
