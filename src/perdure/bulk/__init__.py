"""Actions on many runs, as a durable run of the workflow `perdure.bulk`.

`start()` stores the action, and returns before anything is changed. A worker that serves `perdure.bulk` executes it:
`serving()` opens one for this process, and every App without `workflows=` in a process that imports this package is
one.
"""

from perdure.bulk.selection import NAME, RUNS_MAX, Action, Selection, count, sample
from perdure.bulk.serving import Background, serving
from perdure.bulk.starting import new_action_id, start
from perdure.bulk.workflow import Progress, progress_of

__all__ = [
    "NAME",
    "RUNS_MAX",
    "Action",
    "Background",
    "Progress",
    "Selection",
    "count",
    "new_action_id",
    "progress_of",
    "sample",
    "serving",
    "start",
]
