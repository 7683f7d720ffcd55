"""A stand-in with only what entry.py and the check of the engine import. The real one takes seconds to import."""

__version__ = "5.6.0"


class TrainerCallback:
    pass
