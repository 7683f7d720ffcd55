"""Answers of the programs on a node (node_programs.py) as typed records (typed_json.py), one module a subject.

Records that a node writes for a run are in runs/collect/node_records.py.
"""
