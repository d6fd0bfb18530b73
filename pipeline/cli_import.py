"""`codegen-batch import`: other people's tasks into task shards."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cli_options import AsJson

if TYPE_CHECKING:
    from .importers import ImportReport, Progress

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Turn other people's tasks into task shards.")

Source = Annotated[Path, typer.Argument(metavar="SRC", help="The file to read; .gz is fine.", show_default=False)]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write shards to.", show_default=False)]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="FIELD=COLUMN",
        help="Which column becomes which field of a task, or FIELD:=VALUE for a constant; may be repeated.",
        show_default=False,
    ),
]
RowsPerShard = Annotated[int, typer.Option(metavar="N", min=1, help="Rows of a shard at most.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace shards that are in OUT.")]
ROWS = 10_000


@app.command()
def humaneval(
    src: Source, out: Out, rows_per_shard: RowsPerShard = ROWS, overwrite: Overwrite = False, as_json: AsJson = False
) -> None:
    """Import OpenAI's HumanEval.jsonl or HumanEval.jsonl.gz.

    [bold]Example[/]

    codegen-batch import humaneval HumanEval.jsonl.gz data/humaneval
    """
    from .importers import import_humaneval

    _import(
        lambda tell: import_humaneval(src, out, rows_per_shard=rows_per_shard, overwrite=overwrite, on_progress=tell), as_json
    )


@app.command()
def mbpp(
    src: Source, out: Out, rows_per_shard: RowsPerShard = ROWS, overwrite: Overwrite = False, as_json: AsJson = False
) -> None:
    """Import Google's mbpp.jsonl or sanitized-mbpp.json.

    [bold]Example[/]

    codegen-batch import mbpp mbpp.jsonl data/mbpp
    """
    from .importers import import_mbpp

    _import(lambda tell: import_mbpp(src, out, rows_per_shard=rows_per_shard, overwrite=overwrite, on_progress=tell), as_json)


@app.command()
def jsonl(
    src: Source,
    out: Out,
    column: Columns = None,
    rows_per_shard: RowsPerShard = ROWS,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Import any JSONL file. Fields that no --column names come from the column of the same name.

    [bold]Examples[/]

    codegen-batch import jsonl tasks.jsonl data/mine --column task_id=id --column prompt=question
    codegen-batch import jsonl tasks.jsonl data/mine --column test=info.tests.0 --column test_kind:=asserts
    """
    from .import_columns import parse_columns
    from .importers import import_jsonl

    columns = parse_columns(column or ())
    _import(
        lambda tell: import_jsonl(src, out, columns, rows_per_shard=rows_per_shard, overwrite=overwrite, on_progress=tell),
        as_json,
    )


@app.command()
def hf(
    src: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="A folder of data files, one that save_to_disk wrote, or a hub id.", show_default=False
        ),
    ],
    out: Out,
    column: Columns = None,
    split: Annotated[str | None, typer.Option(help="Which split, if there are several.", show_default=False)] = None,
    config: Annotated[str | None, typer.Option(help="Which configuration, if there are several.", show_default=False)] = None,
    rows_per_shard: RowsPerShard = ROWS,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Import a Hugging Face data set, from a local folder or the hub.

    [bold]Examples[/]

    codegen-batch import hf openai/openai_humaneval data/he --split test --column test_kind:=check
    codegen-batch import hf folder-of-parquet data/mine --column prompt=question
    """
    from .import_columns import parse_columns
    from .importers import import_hf

    columns = parse_columns(column or ())
    _import(
        lambda tell: import_hf(
            src, out, columns, split, config, rows_per_shard=rows_per_shard, overwrite=overwrite, on_progress=tell
        ),
        as_json,
    )


def _import(work: "Callable[[Progress], ImportReport]", as_json: bool) -> None:
    """Does an import with a line of progress on a terminal, then prints what was written."""
    from ..schemas.errors import Problem
    from .importers import REJECTED
    from .report import plural
    from .terminal import print_json, print_problems, stderr, stdout

    with stderr().status("reading") as line:
        report = work(lambda rows: line.update(f"{rows:,} rows"))
    folder = report.shards[0].parent
    if as_json:
        content = {"rows": report.rows, "rejected": report.rejected, "shards": [str(shard) for shard in report.shards]}
        print_json(content)
    else:
        text = f"{plural(report.rows, 'task')} in {plural(len(report.shards), 'shard')}: {folder}"
        stdout().print(text, soft_wrap=True, markup=False, highlight=False)
    if report.rejected:
        print_problems([Problem(str(folder / REJECTED), f"{plural(report.rejected, 'row')} rejected, with reasons")], "warning")
