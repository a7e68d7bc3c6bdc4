"""What every test shares: figures are drawn without a window, and without touching the kernels' setting."""

import matplotlib

matplotlib.use("Agg")
