"""A YAML file whose keys know their lines, so that every problem can be shown where it is."""

import difflib
import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..schemas.errors import JobFileError, Problem

if TYPE_CHECKING:
    import yaml


@dataclass(frozen=True)
class Document:
    """One YAML file: its data, and the tree of nodes that it came from."""

    file: str  # as the user named it
    root: "yaml.MappingNode"
    data: dict[Any, Any]

    def line(self, path: Sequence[str]) -> int:
        """The line, from 1, of the key or list item at `path`, or of what is nearest above it."""
        import yaml

        node: yaml.Node = self.root
        line = node.start_mark.line + 1
        for part in path:
            if isinstance(node, yaml.MappingNode):
                found = [(key, value) for key, value in node.value if str(key.value) == part]
            elif isinstance(node, yaml.SequenceNode) and part.isdigit():
                found = [(item, item) for item in node.value[int(part) : int(part) + 1]]
            else:
                found = []
            if not found:
                break
            line, node = found[-1][0].start_mark.line + 1, found[-1][1]
        return line

    def duplicate_keys(self) -> Iterator[tuple[int, Problem]]:
        """Every key that its mapping already has, with its line. YAML libraries let the last one win in silence."""
        import yaml

        pending: list[tuple[str, yaml.Node]] = [("", self.root)]
        seen: set[int] = set()
        while pending:
            path, node = pending.pop()
            if id(node) in seen:  # an alias, which may even hold itself
                continue
            seen.add(id(node))
            if isinstance(node, yaml.SequenceNode):
                pending += [(f"{path}.{i}", item) for i, item in enumerate(node.value)]
            elif isinstance(node, yaml.MappingNode):
                first: dict[str, int] = {}
                for key, value in node.value:
                    name, line = str(key.value), key.start_mark.line + 1
                    dotted = f"{path}.{name}".lstrip(".")
                    if name in first:
                        message = f"the key is given twice, first on line {first[name]}"
                        yield line, Problem(f"{self.file}:{line} {dotted}", message, "keep one of them")
                    first.setdefault(name, line)
                    pending.append((dotted, value))


def read_document(path: Path) -> Document:
    """Reads a YAML file that holds one mapping.

    Raises:
        JobFileError: no such file, not UTF-8, not YAML, empty, or not a mapping; with line and column where there are any.
    """
    import yaml

    file, text = str(path), _read_text(path)
    loader = yaml_loader()
    with yaml_errors(file, text):
        root = yaml.compose(text, Loader=loader)
        if root is None:
            raise JobFileError(Problem(file, "is empty", "a job file starts with its name, such as `name: my-job`"))
        data = loader("").construct_document(root)
        if not isinstance(root, yaml.MappingNode) or not isinstance(data, dict):
            where = f"{file}:{root.start_mark.line + 1}"
            raise JobFileError(Problem(where, "a job file is made of `key: value` lines", "the first is such as `name: my-job`"))
        return Document(file, root, data)


def parse_value(text: str, where: str) -> Any:
    """Reads one value written in YAML. Raises JobFileError, placed at `where`."""
    import yaml

    with yaml_errors(where, text):
        return yaml.load(text, Loader=yaml_loader())


@functools.cache
def yaml_loader() -> type["yaml.SafeLoader"]:
    """YAML's safe loader, but 1e-3 is a number (as in YAML 1.2) and dates stay text."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers = {  # noqa: RUF012  (the library's own attribute)
            first: [(tag, pattern) for tag, pattern in rules if not tag.endswith(":timestamp")]
            for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    exponent = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+.0123456789"))
    return Loader


@contextmanager
def yaml_errors(where: str, text: str) -> Iterator[None]:
    """Turns any error of the YAML library into a JobFileError with line and column."""
    import yaml

    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise JobFileError(Problem(place, f"not valid YAML: {error.problem or error.context}")) from None
    except yaml.reader.ReaderError as error:
        place = f"{where}:{text.count(chr(10), 0, error.position) + 1}"
        raise JobFileError(Problem(place, f"not valid YAML: the character {chr(error.character)!r} is not allowed")) from None
    except RecursionError:
        raise JobFileError(Problem(where, "not valid YAML: nested too deeply")) from None
    except ValueError as error:  # a scalar that Python cannot hold
        raise JobFileError(Problem(where, f"not valid YAML: {error}")) from None


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.y*ml")], n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else ""
        raise JobFileError(Problem(str(path), "no such file", hint)) from None
    except IsADirectoryError:
        raise JobFileError(Problem(str(path), "is a folder, not a job file", "name the .yaml file in it")) from None
    except OSError as error:
        raise JobFileError(Problem(str(path), f"cannot be read: {error.strerror}")) from None
    except UnicodeDecodeError as error:
        where = f"{path}:{error.object.count(10, 0, error.start) + 1}"
        message = f"not UTF-8: byte 0x{error.object[error.start]:02x}"
        raise JobFileError(Problem(where, message, "save the file as UTF-8")) from None
