"""Planning, launching and watching of multi-node training; no user interface here."""

__version__ = "0.2.0"
