"""The commands about runs: run, status, show and judge."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..schemas.errors import UsageError
from .cli_options import AsJson, JobFile, Limit, Overrides, Quiet, RunDir, folder

if TYPE_CHECKING:
    from .run import RunOutcome


def run(
    job: JobFile,
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=folder, help="Where results go; the job's own folder by default.", show_default=False),
    ] = None,
    limit: Limit = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a job to its end, or go on where an earlier run of it stopped.

    The summary goes to stdout, progress to stderr. Results are in DIR/results as Parquet, numbers in DIR/metrics.parquet.

    [bold]Examples[/]

    codegen-batch run jobs/quickstart.yaml
    codegen-batch run jobs/humaneval.yaml --limit 20 --output runs/look
    codegen-batch run jobs/humaneval.yaml --set generation.samples=5 --set generation.temperature=0.8
    codegen-batch run jobs/quickstart.yaml --quiet --json > summary.json
    """
    from .config import load_job
    from .run import run_job
    from .terminal import stderr

    _finish(run_job(load_job(job, overrides or ()), output=output, limit=limit, console=stderr(), quiet=quiet), as_json)


def status(run_folder: RunDir, as_json: AsJson = False) -> None:
    """Show how far a run is, while it runs or afterwards.

    [bold]Examples[/]

    codegen-batch status runs/quickstart
    codegen-batch status runs/quickstart --json | jq .run.rows
    """
    from .show import read_status, status_json, status_table
    from .store import read_run
    from .terminal import print_json, stdout

    found = read_status(read_run(run_folder))
    if as_json:
        print_json(status_json(found))
    else:
        stdout().print(status_table(found), crop=False)


def show(
    run_folder: RunDir,
    task_id: Annotated[str, typer.Argument(metavar="TASK_ID", help="The task.", show_default=False)],
    sample: Annotated[int | None, typer.Option(metavar="N", min=0, help="Only this sample.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Show one task: prompt, completions, code, verdicts and the output of tests that failed.

    [bold]Examples[/]

    codegen-batch show runs/quickstart quickstart/running-total
    codegen-batch show runs/quickstart quickstart/running-total --sample 1
    """
    from .show import find_rows, show_task
    from .store import read_run
    from .task_lookup import find_task
    from .terminal import print_json, stdout

    found = read_run(run_folder)
    rows = find_rows(found, task_id, sample)
    if as_json:
        print_json(rows)
    else:
        show_task(rows, find_task(found, task_id), stdout())


def judge(
    samples: Annotated[
        Path,
        typer.Argument(metavar="RESULTS|SAMPLES.jsonl", help="A run's folder, or completions in JSON lines.", show_default=False),
    ],
    tasks: Annotated[
        list[str], typer.Option(metavar="SHARDS", help="Task shards, files or globs; may be repeated.", show_default=False)
    ],
    output: Annotated[Path, typer.Option(metavar="DIR", parser=folder, help="Where results go.", show_default=False)],
    cpu_s: Annotated[float | None, typer.Option(metavar="S", help="Seconds of processor time a sample.")] = None,
    wall_s: Annotated[float | None, typer.Option(metavar="S", help="Seconds by the clock a sample.")] = None,
    memory_mb: Annotated[int | None, typer.Option(metavar="MB", help="Memory a sample.")] = None,
    workers: Annotated[int | None, typer.Option(metavar="N", help="Judges at once; one a core by default.")] = None,
    isolation: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="The weakest sandbox accepted: none, process or namespaces.")
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Judge completions that were made elsewhere: the validators alone, no model.

    A line of SAMPLES.jsonl is such as {"task_id": "HumanEval/0", "completion": "..."}.

    [bold]Examples[/]

    codegen-batch judge samples.jsonl --tasks 'data/humaneval/*.parquet' --output runs/judged
    codegen-batch judge runs/quickstart --tasks 'data/quickstart/*.parquet' --output runs/again --cpu-s 10
    """
    given = {"cpu_s": cpu_s, "wall_s": wall_s, "memory_mb": memory_mb, "workers": workers, "isolation": isolation}
    validators = _validators({name: value for name, value in given.items() if value is not None})

    from .rejudge import judge_samples
    from .terminal import stderr

    _finish(judge_samples(samples, tasks, output, validators, console=stderr(), quiet=quiet), as_json)


def _validators(given: dict[str, Any]) -> Any:
    """Settings of the judge. Raises UsageError, with all that is wrong."""
    from pydantic import ValidationError

    from ..schemas.errors import Problem
    from ..schemas.job import Validators

    try:
        return Validators(**given)
    except ValidationError as error:
        problems = [(f"--{'-'.join(str(e['loc'][0]).split('_'))}", f"{e['msg']}, not {e['input']}") for e in error.errors()]
        raise UsageError(*(Problem(where, message) for where, message in problems)) from None


def _finish(outcome: "RunOutcome", as_json: bool) -> None:
    """Prints the summary; raises the outcome's error after it."""
    from .report import print_summary, summary_json
    from .terminal import print_json, stdout

    if as_json:
        print_json(summary_json(outcome.metrics, outcome.run))
    else:
        print_summary(outcome.metrics, outcome.run, stdout())
    if outcome.error:
        raise outcome.error
