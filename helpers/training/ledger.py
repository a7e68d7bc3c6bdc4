"""What a rank holds, by formula."""

from helpers.measure import Quantity, predicted


def training_state(parameters: int, ranks: int) -> Quantity:
    """Bytes of weights, gradients and AdamW's two moments on one of `ranks` fully sharded ranks.

    All four in fp32: 16·N/W. Activations and the group that is gathered at the moment come on top.
    Raises `ValueError` unless both counts are positive.
    """
    if parameters < 1 or ranks < 1:
        raise ValueError(f"{parameters} parameters on {ranks} ranks: both must be positive")
    return predicted(16 * parameters / ranks, "B", "16 N / W")
