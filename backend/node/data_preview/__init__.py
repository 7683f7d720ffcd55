"""Program on a node, read from standard input. It shows rows of a job's data sets as the model sees them.

    python - preview JSON --token T

It prints one line, `T{json}`. LLaMA-Factory's own code encodes the rows, without a GPU.
"""
