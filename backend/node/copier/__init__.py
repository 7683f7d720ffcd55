"""Runs on nodes, by the supervisor: node 0 gives files, others take those they lack. Standard library, Python >= 3.8.

    copy_files.py FOLDER give|take

FOLDER/copy.json holds the giver's `address` and `port`, a `token` that every request must show, and `roots`: folders,
each with the `names` in it that are meant, or null for all. A taker never changes a file that it has: what differs is
told and nothing is copied. What it takes appears whole, after its hash was compared; what was taken of a file before is
kept beside its place, so that the next try goes on from there. FOLDER/progress.json says how far a taker is,
FOLDER/result.json why it failed.

The modules go to a node as one file, copy_files.py, joined as those of the supervisor are (node_programs.py).
"""
