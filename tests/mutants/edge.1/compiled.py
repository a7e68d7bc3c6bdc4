"""symptom: wrong type

The bytes of the text are returned.
"""


def answer():
    return b"#version 450"
