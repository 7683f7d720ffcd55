"""Runs of jobs: launch, monitoring, stop and storage.

`app` imports only the modules of this folder that tests/test_layers.py lists, and no module of the folders below.
"""
