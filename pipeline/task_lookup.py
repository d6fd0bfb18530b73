"""Finds the task of a result again."""

from pathlib import Path

from ..schemas.errors import InputDataError
from ..schemas.records import Task
from .store import RunInfo
from .tasks import find_shards, read_tasks


def find_task(run: RunInfo, task_id: str) -> Task | None:
    """The task as its shard has it now; None where the shards are gone, unreadable, or have no such task."""
    patterns = run.job.get("tasks", {}).get("shards", ())
    try:
        rows = read_tasks(find_shards(patterns, Path()))
        return next((row for row in rows if row.task_id == task_id and isinstance(row, Task)), None)
    except InputDataError:
        return None
