"""Accuracy against published measurements and speed; each module prints one table: `python -m benchmarks.accuracy`."""
