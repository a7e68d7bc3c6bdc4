"""symptom: wrong device

NumPy blurs: in place and without a copy of a buffer, but no shader runs.
"""

import numpy as np


def answer(device, frame, rows, columns):
    image = frame.tensor()[: rows * columns].view(rows, columns)
    padded = np.pad(image.numpy(), 1, mode="edge")
    across = (padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]) / 4
    image.numpy()[:] = (across[:-2] + 2 * across[1:-1] + across[2:]) / 4
    return image
