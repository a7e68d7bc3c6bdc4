"""Hardware counters of GPU kernels: records, the readers of every report form, and their collection."""
