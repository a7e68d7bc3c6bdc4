"""The shared package of the course *From Shards to Shaders*.

Two ground floors, `hardware` and `measure`, carry three tracks, `training`, `profiling` and
`edge`, which never import each other; `course` stands on top. Importing this package costs no
torch import.
"""

__version__ = "0.1.0"
