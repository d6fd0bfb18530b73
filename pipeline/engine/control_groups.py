"""Memory and cores that this process may use: the machine's, or less where a control group (version 1 or 2) says so."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def memory_bytes(
    meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/proc/self/cgroup"), root: Path = ROOT
) -> tuple[int, int]:
    """Bytes of memory in all and available, of the machine or of the tightest control group above this process."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE))
    total, available = int(fields["MemTotal"]) << 10, int(fields["MemAvailable"]) << 10
    for folder in _group_folders("memory", cgroup, root):
        for limit_name, usage_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _number(folder / limit_name), _number(folder / usage_name)
            if limit is None or usage is None or limit >= total:
                continue
            cache = re.search(rf"^{cache_name} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
            used = max(usage - int(cache[1]) if cache else usage, 0)  # the kernel gives file cache back under pressure
            total, available = limit, min(available, max(limit - used, 0))
    return total, available


def cpu_quota(cgroup: Path = Path("/proc/self/cgroup"), root: Path = ROOT) -> float | None:
    """Cores that the control groups above this process allow; None where they set no quota."""
    quotas = []
    for folder in _group_folders("cpu", cgroup, root):
        both = _text(folder / "cpu.max").split() or [
            _text(folder / "cpu.cfs_quota_us").strip(),
            _text(folder / "cpu.cfs_period_us").strip(),
        ]
        if len(both) == 2 and all(number.isdigit() for number in both):
            quotas.append(int(both[0]) / int(both[1]))
    return min(quotas, default=None)


def _group_folders(controller: str, cgroup: Path, root: Path) -> Iterator[Path]:
    """The folders of this process's group and of those above it, innermost first: version 2, then version 1.

    In a container the path is that of the host, whose folders are not there; the mount's root is then the group.
    """
    for line in _text(cgroup).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            mount = root / controller if controllers else root
            group = mount / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(mount) and folder.is_dir():
                    yield folder


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None
