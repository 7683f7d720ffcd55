"""The tables of the database, and the statements that bring an older database to the newest version.

Only this module defines the schema; store.py runs its statements.
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE draft (id INTEGER PRIMARY KEY CHECK (id = 1), job TEXT NOT NULL, updated REAL NOT NULL)",
        """CREATE TABLE runs (id TEXT PRIMARY KEY, name TEXT NOT NULL, engine TEXT NOT NULL, job TEXT NOT NULL,
            created REAL NOT NULL, ended REAL) WITHOUT ROWID""",
        """CREATE TABLE attempts (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, created REAL NOT NULL,
            master_address TEXT NOT NULL, master_port INTEGER NOT NULL, rendered TEXT NOT NULL,
            PRIMARY KEY (run, attempt)) WITHOUT ROWID""",
        """CREATE TABLE claims (address TEXT PRIMARY KEY, run TEXT NOT NULL REFERENCES runs) WITHOUT ROWID""",
        """CREATE TABLE nodes (run TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
            address TEXT NOT NULL, folder TEXT NOT NULL, python TEXT NOT NULL, setup TEXT, mark TEXT NOT NULL,
            clock_offset_s REAL NOT NULL, exit TEXT, stop TEXT, PRIMARY KEY (run, attempt, rank),
            FOREIGN KEY (run, attempt) REFERENCES attempts) WITHOUT ROWID""",
        """CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL REFERENCES runs,
            attempt INTEGER NOT NULL, rank INTEGER, kind TEXT NOT NULL, time REAL NOT NULL, detail TEXT NOT NULL)""",
        "CREATE INDEX events_run ON events (run, seq)",
        """CREATE TRIGGER events_stay BEFORE UPDATE ON events
            BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
        """CREATE TRIGGER events_last BEFORE DELETE ON events
            BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
        """CREATE TABLE points (seq INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL REFERENCES runs,
            attempt INTEGER NOT NULL, rank INTEGER NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL,
            total_steps INTEGER, step_s REAL, tokens INTEGER, loss REAL, grad_norm REAL, learning_rate REAL,
            epoch REAL, allocated_gib REAL, reserved_gib REAL, UNIQUE (run, attempt, rank, step))""",
        "CREATE INDEX points_rank ON points (run, rank, seq)",
        """CREATE TABLE offsets (run TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
            file TEXT NOT NULL, generation INTEGER NOT NULL, offset INTEGER NOT NULL, tail BLOB NOT NULL,
            PRIMARY KEY (run, attempt, rank, file),
            FOREIGN KEY (run, attempt, rank) REFERENCES nodes) WITHOUT ROWID""",
        """CREATE TABLE log_chunks (run TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
            file TEXT NOT NULL, generation INTEGER NOT NULL, offset INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (run, attempt, rank, file, generation, offset),
            FOREIGN KEY (run, attempt, rank) REFERENCES nodes)""",
        """CREATE TABLE heartbeats (run TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
            time REAL NOT NULL, received REAL NOT NULL, data TEXT NOT NULL,
            PRIMARY KEY (run, attempt, rank, time),
            FOREIGN KEY (run, attempt, rank) REFERENCES nodes) WITHOUT ROWID""",
    ),
    (
        # allowed number of automatic restarts, and step of the checkpoint that an attempt resumed from
        "ALTER TABLE runs ADD COLUMN restarts INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE attempts ADD COLUMN checkpoint_step INTEGER",
        """CREATE TABLE queue (run TEXT PRIMARY KEY REFERENCES runs, position INTEGER NOT NULL,
            not_before REAL NOT NULL) WITHOUT ROWID""",
        "CREATE TABLE launches (token TEXT PRIMARY KEY, run TEXT NOT NULL REFERENCES runs) WITHOUT ROWID",
    ),
    (
        # checkpoint of a run that the draft starts from
        "CREATE TABLE draft_source (id INTEGER PRIMARY KEY CHECK (id = 1), source TEXT NOT NULL)",
    ),
    (
        # newest event that the operator was notified of
        "CREATE TABLE messages_sent (id INTEGER PRIMARY KEY CHECK (id = 1), event INTEGER NOT NULL)",
    ),
    (
        # utilization of the nodes of a run, over all attempts (utilization.py)
        """CREATE TABLE usage (run TEXT NOT NULL REFERENCES runs, rank INTEGER NOT NULL, start INTEGER NOT NULL,
            width INTEGER NOT NULL, beats INTEGER NOT NULL, data TEXT NOT NULL,
            PRIMARY KEY (run, rank, start)) WITHOUT ROWID""",
    ),
    (
        # retention: the records of deleted runs (deletion.py), the runs without raw rows (thinning.py), the
        # rules (retention.py), and the past sizes of the database (sizes.py)
        """CREATE TABLE deleted_runs (run TEXT PRIMARY KEY, name TEXT NOT NULL, engine TEXT NOT NULL,
            created REAL NOT NULL, ended REAL, state TEXT NOT NULL, step INTEGER, tokens TEXT NOT NULL,
            deleted REAL NOT NULL, by TEXT NOT NULL, row_counts TEXT NOT NULL, archive TEXT, sha256 TEXT,
            cleared REAL) WITHOUT ROWID""",
        """CREATE TRIGGER deleted_runs_stay BEFORE UPDATE OF run, name, engine, created, ended, state, step, tokens,
            deleted, by, row_counts, archive, sha256 ON deleted_runs
            BEGIN SELECT RAISE(ABORT, 'records of deleted runs are append-only'); END""",
        """CREATE TRIGGER deleted_runs_last BEFORE DELETE ON deleted_runs
            BEGIN SELECT RAISE(ABORT, 'records of deleted runs are append-only'); END""",
        "DROP TRIGGER events_last",
        """CREATE TRIGGER events_last BEFORE DELETE ON events
            WHEN NOT EXISTS (SELECT 1 FROM deleted_runs d WHERE d.run = OLD.run)
            BEGIN SELECT RAISE(ABORT, 'events are append-only'); END""",
        "CREATE TABLE thinned_runs (run TEXT PRIMARY KEY REFERENCES runs, time REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE retention (id INTEGER PRIMARY KEY CHECK (id = 1), rules TEXT NOT NULL)",
        "CREATE TABLE storage_samples (time REAL PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID",
    ),
    (
        # the curves of a run at several widths (curve_levels.py), and how far each attempt's points are in them
        """CREATE TABLE curve_parts (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, seq INTEGER NOT NULL,
            generation INTEGER NOT NULL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL, losses BLOB NOT NULL,
            PRIMARY KEY (run, attempt)) WITHOUT ROWID""",
        """CREATE TABLE curve_levels (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL,
            bits INTEGER NOT NULL, bucket INTEGER NOT NULL, data BLOB NOT NULL,
            PRIMARY KEY (run, attempt, bits, bucket)) WITHOUT ROWID""",
    ),
    (
        # every number that a training logs under a name (logged_metrics.py), a summary of each name, and the same
        # numbers at several widths (metric_levels.py)
        """CREATE TABLE metrics (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL, rank INTEGER NOT NULL,
            name TEXT NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL, value REAL NOT NULL,
            PRIMARY KEY (run, attempt, rank, name, step)) WITHOUT ROWID""",
        """CREATE TABLE metric_series (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL,
            rank INTEGER NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL, generation INTEGER NOT NULL,
            first_step INTEGER NOT NULL, last_step INTEGER NOT NULL, last REAL NOT NULL, lowest REAL,
            lowest_step INTEGER, highest REAL, highest_step INTEGER, waiting INTEGER NOT NULL,
            levels_step INTEGER NOT NULL, PRIMARY KEY (run, attempt, rank, name)) WITHOUT ROWID""",
        """CREATE TABLE metric_levels (run TEXT NOT NULL REFERENCES runs, attempt INTEGER NOT NULL,
            rank INTEGER NOT NULL, name TEXT NOT NULL, bits INTEGER NOT NULL, bucket INTEGER NOT NULL,
            points BLOB NOT NULL, PRIMARY KEY (run, attempt, rank, name, bits, bucket)) WITHOUT ROWID""",
    ),
    (
        # tags, note and visibility of runs, as the operator set them (run_labels.py)
        """CREATE TABLE run_labels (run TEXT PRIMARY KEY REFERENCES runs, tags TEXT NOT NULL, note TEXT NOT NULL,
            is_hidden INTEGER NOT NULL) WITHOUT ROWID""",
    ),
    (
        # size of the rank's log when the step was logged, and the rules of alerts (alert_rules.py)
        "ALTER TABLE points ADD COLUMN log_offset INTEGER",
        """CREATE TABLE alert_rules (id INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT, rule TEXT NOT NULL,
            created REAL NOT NULL)""",
    ),
    (
        # nodes on which no run starts until a user allows it again (node_replacement.py)
        """CREATE TABLE cordons (node TEXT PRIMARY KEY, run TEXT NOT NULL, time REAL NOT NULL,
            problem TEXT NOT NULL) WITHOUT ROWID""",
    ),
    (
        # runs that use the model of another run (derived_runs.py): a chat or an evaluation
        """CREATE TABLE derived_runs (run TEXT PRIMARY KEY REFERENCES runs, kind TEXT NOT NULL, trained TEXT NOT NULL,
            request TEXT NOT NULL) WITHOUT ROWID""",
        "CREATE INDEX derived_runs_trained ON derived_runs (trained)",
    ),
    (
        # answers and metrics of an evaluation, as its node wrote them (derived_runs.py)
        """CREATE TABLE evaluations (run TEXT PRIMARY KEY REFERENCES runs, result TEXT NOT NULL, time REAL NOT NULL)
            WITHOUT ROWID""",
    ),
)
"""One tuple of statements a schema version; version n is reached by running the first n. Append, never edit."""
