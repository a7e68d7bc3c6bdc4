import pytest
import yaml

from helpers.hardware import Capabilities, TargetError, detect_target, load_target, target_names
from helpers.hardware.targets import FOLDER, read_target

GOOD = yaml.safe_load((FOLDER / "cpu.yaml").read_text())


def write(folder, content, name="cpu"):
    path = folder / f"{name}.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def changed(**machine):
    return {"target": "cpu", "machine": GOOD["machine"] | machine}


def test_every_file_is_a_target_and_every_target_a_file():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(target_names())
    assert [load_target(name).name for name in target_names()] == list(target_names())


def test_papermill_may_inject_the_file_as_parameters():
    """`papermill -f targets/cpu.yaml` hands over the top-level keys: the notebook reads `target`."""
    for name in target_names():
        assert yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["target"] == name


def test_a_typing_error_in_a_name_gets_the_nearest_target():
    with pytest.raises(TargetError, match="did you mean 'cuda-4'"):
        load_target("cuda4")


@pytest.mark.parametrize("name", ["../cpu", "", "/etc/passwd"])
def test_a_path_is_no_target(name):
    with pytest.raises(TargetError, match="there is no target"):
        load_target(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(rank=4), "unknown key 'rank'.*did you mean 'ranks'"),
        (changed(ranks="4"), "'4' is a str, but must be int"),
        (changed(ranks=True), "True is a bool, but must be int"),
        (changed(ranks=None), "None is a NoneType"),
        (changed(requires=["cuda"]), "'cuda' is not a requirement"),
        (changed(requires=["gpu>=1"]), "'gpu>=1' is not a requirement"),
        (changed(optional=[1]), "1 is a int, but must be str"),
        (changed(timeout_s={"slow": 10}), "no default"),
        (changed(timeout_s={"default": "10s"}), "'10s' is a str"),
        (changed(sizes={"preset": "tiny"}), "missing key 'steps'"),
        (changed(sizes="tiny"), "'tiny' is a str, but must be Sizes"),
        ({"target": "cpu", "machine": []}, "machine must be a mapping"),
        ({"target": "mps", "machine": GOOD["machine"]}, "target is 'mps'"),
        ({"machine": GOOD["machine"]}, "top level"),
        ("- a\n- b", "top level"),
        ("a: [1, 2", "not readable as YAML"),
        ("", "top level"),
    ],
)
def test_a_wrong_file_is_a_named_error_with_the_place(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(TargetError, match=f"(?s){message}") as caught:
        read_target(path)
    assert str(path) in caught.value.where


@pytest.mark.parametrize(
    ("machine", "target"),
    [
        (Capabilities(), "cpu"),
        (Capabilities(vulkan=1), "cpu"),
        (Capabilities(vulkan=2, vulkan_gpu=1), "vulkan"),
        (Capabilities(cuda=1, vulkan=1, vulkan_gpu=1), "cuda-1"),
        (Capabilities(cuda=3), "cuda-1"),
        (Capabilities(cuda=8), "cuda-4"),
        (Capabilities(mps=1, vulkan=1, vulkan_gpu=1), "mps"),
    ],
)
def test_the_most_demanding_target_is_detected(machine, target):
    assert detect_target(machine) == target


def test_unmet_requirements_say_what_the_machine_has():
    assert load_target("cuda-4").unmet(Capabilities(cuda=2)) == ("cuda>=4 (this machine has 2)",)
    assert load_target("cuda-4").unmet(Capabilities(cuda=4)) == ()


def test_vulkan_devices_are_counted_by_kind():
    machine = Capabilities().with_vulkan(("cpu", "discrete", "cpu"))
    assert (machine.vulkan, machine.vulkan_gpu) == (3, 1)


def test_a_notebook_may_have_its_own_time_limit(tmp_path):
    target = read_target(write(tmp_path, changed(timeout_s={"default": 10, "training/01": 99})))
    assert (target.timeout("training/01"), target.timeout("edge/01")) == (99, 10)
