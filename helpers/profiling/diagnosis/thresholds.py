"""The numbers at which a verdict turns, each named once; percent unless said otherwise.

Source of SATURATED, LATENCY and BALANCED: the SOLBottleneck rule of Nsight Compute. Of STALL: its CPIStall rule.
"""

SATURATED = 80.0
LATENCY = 60.0
BALANCED = 10.0
NEAR = 2.0  # a percentage this close to a threshold may fall on its other side in the next run

SHORTEST = 3e-6  # s: below it, ratios of a kernel are those of its start and end
IMPOSSIBLE = 105.0  # passes of one report differ by some percent; more cannot be
UNEXPLAINED = 2.0  # a total further above its largest known part has a part that is not known

BUSY_DEVICE = 0.70  # share of the wall time
FULL_WAVE = 1.0
BUSY_SMS = 0.75  # share of the elapsed cycles in which an SM holds a warp
TAIL_EFFICIENCY = 0.75  # waves / ⌈waves⌉

SM_CLOCK = (0.25, 1.15)  # of the rated clock; the tool locks to the base clock, T4 to 0.37 of its boost
DRAM_CLOCK = (0.75, 1.25)  # of the rated clock; memory has no base clock

STALL = 0.30  # share of the cycles between two instructions of a warp
STALLS_KNOWN = 0.9  # share of the cycles between two instructions that the collected stalls add up to
ELIGIBLE = 1.0  # warps a scheduler could issue from, per cycle
SECTORS_PER_REQUEST = 16.0  # 4 for coalesced 32-bit loads, 16 for 128-bit ones
REDUNDANT = 1.5  # measured / compulsory bytes
ROOF_AGREES = 0.5  # a math pipe that is saturated should reach this share of the roof
