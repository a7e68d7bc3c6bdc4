"""Ground floor: what this machine is and can do, and the targets that a run is made for."""

from helpers.hardware.capabilities import Capabilities, probe
from helpers.hardware.targets import Target, TargetError, detect_target, load_target, target_names

__all__ = [
    "Capabilities",
    "Target",
    "TargetError",
    "detect_target",
    "load_target",
    "probe",
    "target_names",
]
