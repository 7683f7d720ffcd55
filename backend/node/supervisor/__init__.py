"""Supervisor of a run on one node: it starts the node's part of the run, watches it and ends it.

    supervisor.py start|status|stop FOLDER --token T [--grace S]
    supervisor.py run ATTEMPT_FOLDER
    supervisor.py holder LOCK --token T

It prints one line, `T{json}`. FOLDER/spec.json has the program to run. `start` returns when the program runs. The
supervisor stays in the background, and writes `pid`, `heartbeat.jsonl` and, at the end, `exit`. `stop` works with and
without a supervisor. `run` is for a task of a batch system: it stays in the foreground, prints nothing, and takes the
folder of its node below ATTEMPT_FOLDER.

node_programs.py joins the modules into one file, which needs no other file and can be read from standard input. So a
name has one meaning in all modules, and modules import each other only by `from .module import name`. Standard library
only, Linux, Python >= 3.8.
"""
