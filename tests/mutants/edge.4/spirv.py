"""symptom: wrong type

The text as bytes.
"""


def answer():
    return b"layout(local_size_x = 128) in;"
