"""Provoke real failures of training and keep their logs as test cases of the diagnosis.

    python -m tests.diagnosis.provoke [--work FOLDER] [NAME ...]

Each cause starts real nodes: torchrun on 127.0.0.1 with the entry script and the files that a launch writes. Its logs
go to tests/diagnosis/provoked/NAME. case.yaml there says what was done, and which node and rank are to blame. Without
names, all causes run, and the trainings that end well (healthy.py), whose logs go to tests/diagnosis/healthy.
"""
