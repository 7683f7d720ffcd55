"""Runs on a node: starts one node's part of a run, watches it, ends it. Standard library only, Linux, Python >= 3.8.

    supervisor.py start|status|stop FOLDER --token T [--grace S]
    supervisor.py holder LOCK --token T

Prints one line, `T{json}`. FOLDER/spec.json says what to run. `start` returns as soon as it runs; the supervisor stays
behind, detached, and writes `pid`, `heartbeat.jsonl` and, at the end, `exit`. `stop` works with and without it.

The modules go to a node as one file (node_programs.py joins them): it needs nothing beside it, can be read there, and
can be handed to a Python on its standard input. So a name means one thing in all of them, and they import one
another by `from .module import name` alone.
"""
