"""codegen-batch: Parquet tasks in, generated and judged code out. See README.md."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pipeline.config import load_job as load_job
    from .pipeline.engine.engine import Engine as Engine
    from .pipeline.engine.sequence import Sampling as Sampling
    from .pipeline.run import run_job as run_job

__version__ = "0.1.0"
__all__ = ["Engine", "Sampling", "load_job", "run_job"]

_HOMES = {
    "load_job": "pipeline.config",
    "run_job": "pipeline.run",
    "Engine": "pipeline.engine.engine",
    "Sampling": "pipeline.engine.sequence",
}


def __getattr__(name: str) -> Any:
    """Imports the Python door on first use, so that `codegen-batch --help` stays fast."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
