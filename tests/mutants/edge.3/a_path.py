"""symptom: wrong type

The name of a file as bytes instead of the text.
"""


def answer(rung):
    return f"{rung}.comp".encode()
