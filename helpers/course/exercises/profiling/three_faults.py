"""Three faults of a training loop, mended: the exercises profiling.2, .3 and .4."""

from helpers.course.exercise import Exercise
from helpers.course.exercises.profiling.attend_trial import examine_attend
from helpers.course.exercises.profiling.loader_trial import examine_batches
from helpers.course.exercises.profiling.report_trial import examine_run

EXERCISES = (
    Exercise(
        id="profiling.2",
        title="A loader that does its work once",
        hints=(
            "Look at what stands inside the endless loop. What of it gives the same result every time?",
            "Encode the whole text once, before the loop. A window is then a slice of the tokens, and needs no "
            "characters.",
            "Keep the order of the slow loader: window w starts at w · context and has context + 1 tokens; after the "
            "last whole window comes the first. Inputs are all tokens of it but the last, targets all but the first.",
            "A slice is a view of the tokens: what the loop writes into it is there in the next round. Stack, index "
            "or clone, and the batch has memory of its own.",
        ),
        examine=examine_batches,
    ),
    Exercise(
        id="profiling.3",
        title="A loss that does not stop the device",
        hints=(
            "item(), float(), print and a comparison all need the value: the host waits until the device has it.",
            "Between two reports keep the losses as tensors, or add them up on the device. Look at the value once, "
            "when it is reported, and report it then.",
            "A loss still holds its graph. detach() gives the same value without it, and item() of a mean a float.",
            "The last report may cover fewer than `every` steps: divide by as many as there are.",
        ),
        examine=examine_run,
    ),
    Exercise(
        id="profiling.4",
        title="Attention without a loop over tokens",
        hints=(
            "All scores are one product, q (T, D) with k transposed (D, T), for all heads and sequences at once.",
            "The loop left out the keys that come later. With all scores in one tensor, set those to minus infinity "
            "before the softmax: row t keeps columns 0 to t.",
            "Divide by √D, take the softmax over the keys, multiply with v. Nothing is written in place into q, k or "
            "v, and every step has a gradient.",
            "A row in which everything is masked, or exp() of a large score, gives NaN. Keep the diagonal, and let "
            "softmax subtract the maximum. torch has a function that does it all.",
        ),
        examine=examine_attend,
    ),
)
