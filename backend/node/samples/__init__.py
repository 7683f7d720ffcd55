"""Program on a node, read from standard input. It counts the samples of data sets and measures their lengths.

    python - count JSON --token T

It prints one line, `T{json}`. Python >= 3.8. The lengths need the engine's tokenizers.
"""
