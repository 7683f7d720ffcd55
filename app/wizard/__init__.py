"""The wizard: six steps that edit one draft. The scripts in static/ draw what follows from the draft.

Reading order: page.py, fields.py (widgets from the parameter table), one file per step, draft_state.py (draft -> job
and problems), payload.py (data that pages draw), events.py (event handlers).
"""
