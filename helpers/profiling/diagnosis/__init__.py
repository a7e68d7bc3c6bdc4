"""What limits a kernel: three rules, from a rule of thumb to an ordered classifier with evidence and refusal."""

from helpers.profiling.diagnosis.classifier import diagnose
from helpers.profiling.diagnosis.context import Context, DiagnosisError, Host, host_of, path_context
from helpers.profiling.diagnosis.nvidia_rule import Bottleneck, NvidiaVerdict, nvidia_rule, nvidia_said
from helpers.profiling.diagnosis.rule_v0 import RuleOfThumb, rule_of_thumb
from helpers.profiling.diagnosis.table import classification_counts, classification_table
from helpers.profiling.diagnosis.verdict import Confidence, Diagnosis, Doubt, Evidence, Level, Remedy, State

__all__ = [
    "Bottleneck",
    "Confidence",
    "Context",
    "Diagnosis",
    "DiagnosisError",
    "Doubt",
    "Evidence",
    "Host",
    "Level",
    "NvidiaVerdict",
    "Remedy",
    "RuleOfThumb",
    "State",
    "classification_counts",
    "classification_table",
    "diagnose",
    "host_of",
    "nvidia_rule",
    "nvidia_said",
    "path_context",
    "rule_of_thumb",
]
