"""Runs on a node, read from standard input: counts the samples of data sets and measures how long they are.

    python - count JSON --token T

Python >= 3.8; the lengths need the engine's tokenizers. Prints one line, `T{json}`.
"""
