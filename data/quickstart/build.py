"""Builds the quickstart shards from their YAML sources: `python data/quickstart/build.py`.

A source holds `tasks` and, where several tasks show the same text, `documents`. A task's `prefix` names the document that
its prompt begins with; its `context` names one that goes to the column of that name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from codegen_batch.schemas.tables import TASK

HERE = Path(__file__).parent
SHARDS = ("short", "medium", "long")


def task_row(task: Mapping[str, Any], documents: Mapping[str, str]) -> dict[str, Any]:
    """One row of tables.TASK."""
    prompt = task["prompt"]
    if "prefix" in task:
        prompt = f"{documents[task['prefix']]}\n{prompt}"
    context = None
    if "context" in task:
        context = [{"path": task["context"]["path"], "text": documents[task["context"]["document"]]}]
    return {
        "task_id": f"quickstart/{task['id']}",
        "prompt": prompt,
        "language": "python",
        "entry_point": task["entry_point"],
        "test": task["test"],
        "test_kind": task["kind"],
        "reference": task["reference"],
        "priority": task.get("priority", "P1"),
        "context": context,
        "limits": task.get("limits"),
        "metadata": json.dumps({"length": task["id"].partition("-")[0], "topic": task["topic"]}),
    }


def build_table(name: str) -> pa.Table:
    """The shard called `name`."""
    source = yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))
    documents = source.get("documents", {})
    return pa.Table.from_pylist([task_row(task, documents) for task in source["tasks"]], schema=TASK)


def main() -> None:
    """Write all shards beside this file. The bytes depend on the sources and on the version of pyarrow only."""
    for name in SHARDS:
        table = build_table(name)
        pq.write_table(table, HERE / f"{name}.parquet", compression="zstd")
        print(f"{name}.parquet: {table.num_rows} tasks")


if __name__ == "__main__":
    main()
