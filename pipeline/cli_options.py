"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


def folder(text: str) -> Path:
    """A folder's name that was given as an option."""
    if not text.strip():
        raise typer.BadParameter("it is empty: name a folder")
    return Path(text)


JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.", show_default=False)]
RunDir = Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Replace a value of the job file; may be repeated.", show_default=False),
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", min=1, max=10**12, help="Take only the first N tasks.", show_default=False)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON to stdout instead of a table.")]
