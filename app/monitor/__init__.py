"""The monitor: the list of runs and the view of one run, live. page.py builds it."""
