"""The command line: parses, calls one function, prints what it returns. Data goes to stdout, messages to stderr."""

import errno
import os
import sys
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from ..schemas.errors import CodegenBatchError, EnvironmentFailure
from .cli_import import app as import_app
from .cli_options import AsJson, JobFile, Limit, Overrides
from .cli_runs import judge, run, show, status
from .signals import INTERRUPTED, INTERRUPTED_MESSAGE, end_at_once


class Commands(TyperGroup):
    """All commands. A reader of our output that goes away, such as `head`, ends a command in silence."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt:  # a run's orderly end; click would make an exit code 1 of it
            typer.echo(INTERRUPTED_MESSAGE, err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            from .terminal import CLOSED_PIPE

            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
            raise typer.Exit(CLOSED_PIPE) from None
        return result


app = typer.Typer(
    name="codegen-batch",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 bug, 2 usage, 3 job file invalid, 4 input data invalid, 5 too many error rows, 6 output "
    "conflict, 7 environment, 75 stopped and resumable, 130 interrupted.",
)
app.add_typer(import_app, name="import")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"codegen-batch {version('codegen-batch')}")
        raise typer.Exit


def _debug(wanted: bool) -> None:
    if wanted:
        from .terminal import DEBUG

        os.environ[DEBUG] = "1"


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", callback=_debug, help="Show the traceback of a crash; also by CODEGEN_BATCH_DEBUG=1.")
    ] = False,
) -> None:
    """Offline batch generation and judging of code: Parquet tasks in, judged Parquet results and metrics out.

    [bold]Examples[/]

    codegen-batch validate jobs/quickstart.yaml
    codegen-batch run jobs/quickstart.yaml
    codegen-batch show runs/quickstart quickstart/running-total
    """


app.command()(run)


@app.command()
def validate(job: JobFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a job, its model, its shards, every row and the sandbox, and say all that is wrong before any work.

    Bad rows are warnings, as they do not end a run, unless there are more than output.max_error_rate allows.

    [bold]Examples[/]

    codegen-batch validate jobs/quickstart.yaml
    codegen-batch validate jobs/humaneval.yaml --set model.max_context=2048
    """
    from .checks import check_file, check_json
    from .report import plural
    from .terminal import print_json, print_problems, stdout

    check = check_file(job, overrides or ())
    if as_json:
        print_json(check_json(check))
    else:
        print_problems(check.problems)
        print_problems(check.warnings, "warning")
        if not check.problems:
            stdout().print(f"{job}: valid, {plural(check.tasks, 'task')}", soft_wrap=True, markup=False, highlight=False)
    raise typer.Exit(check.exit_code)


@app.command()
def plan(job: JobFile, overrides: Overrides = None, limit: Limit = None, as_json: AsJson = False) -> None:
    """Show what a job will do: tasks, lengths, shared prefixes, padding, cache memory and an estimate of time.

    Reads all tasks and the model's tokenizer, but no weights.

    [bold]Examples[/]

    codegen-batch plan jobs/quickstart.yaml
    codegen-batch plan jobs/humaneval.yaml --set kv_cache.dtype=bf16 --json
    """
    from .config import load_job
    from .plan import survey
    from .plan_report import plan_json, plan_table
    from .terminal import print_json, stdout

    report = survey(load_job(job, overrides or ()), limit)
    if as_json:
        print_json(plan_json(report))
    else:
        stdout().print(plan_table(report))


app.command()(status)
app.command()(show)
app.command()(judge)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look at this machine: versions, processor, memory, disk, GPUs, sandbox levels and models.

    [bold]Examples[/]

    codegen-batch doctor
    codegen-batch doctor --json
    """
    from ..schemas.errors import EnvironmentFailure
    from .doctor import diagnose, doctor_json, print_doctor
    from .terminal import print_json, stdout

    checks = diagnose()
    if as_json:
        print_json(doctor_json(checks))
    else:
        print_doctor(checks, stdout())
    if any(check.outcome == "fail" for check in checks):
        raise typer.Exit(EnvironmentFailure.exit_code)


@app.command()
def schema() -> None:
    """Print the JSON Schema of job files, for editors.

    [bold]Example[/]

    codegen-batch schema > job.schema.json
    """
    from .config import job_schema
    from .terminal import print_json

    print_json(job_schema())


def main() -> None:
    """The entry point. Every error ends in a message on stderr and an exit code of schemas/errors.py."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for the life of the process
        elif isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # model output holds what a terminal's encoding may lack
    end_at_once()
    try:
        app(prog_name="codegen-batch")
    except CodegenBatchError as error:
        from .terminal import print_problems

        print_problems(error.problems)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            _crash(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo("error: standard output: no space left on the device it goes to", err=True)
        sys.exit(EnvironmentFailure.exit_code)
    except Exception as error:
        _crash(error)


def _crash(error: Exception) -> NoReturn:
    from .terminal import print_crash

    print_crash(error)
    sys.exit(CodegenBatchError.exit_code)


if __name__ == "__main__":
    main()
