"""Ground floor: timing, statistics, the stamped quantity, tables and figures with alt text."""

from helpers.measure.figures import show_fig
from helpers.measure.quantity import Origin, Quantity, measured, predicted, recorded, simulated
from helpers.measure.show import Table, show, show_table
from helpers.measure.stamps import measured_on
from helpers.measure.timing import Samples, time_call

__all__ = [
    "Origin",
    "Quantity",
    "Samples",
    "Table",
    "measured",
    "measured_on",
    "predicted",
    "recorded",
    "show",
    "show_fig",
    "show_table",
    "simulated",
    "time_call",
]
