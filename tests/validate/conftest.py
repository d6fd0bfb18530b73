"""Judges that the tests of this room share: starting one takes longer than most tests."""

from collections.abc import Callable, Iterator

import pytest
from codegen_batch.pipeline.validate.judge import Judge
from codegen_batch.schemas.job import Validators
from codegen_batch.schemas.records import Judgement, Task

LIMITS = Validators(cpu_s=1.0, wall_s=4.0, memory_mb=512, workers=1)
Ask = Callable[[str, Task], Judgement]


@pytest.fixture(scope="session")
def judge() -> Iterator[Judge]:
    with Judge(LIMITS) as judge:
        yield judge


@pytest.fixture(scope="session")
def ask(judge: Judge) -> Ask:
    """Judges one completion and waits."""
    return lambda completion, task: judge.submit(task, completion).result(timeout=60)
