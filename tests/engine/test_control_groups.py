"""Control groups of either version, as files below a temporary folder."""

from pathlib import Path

import pytest
from codegen_batch.pipeline.engine.control_groups import cpu_quota, memory_bytes

GIB = 1 << 30
MEMINFO = f"MemTotal: {16 * GIB >> 10} kB\nMemFree: 1 kB\nMemAvailable: {12 * GIB >> 10} kB\n"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


V1 = "memory/job/memory."
UNLIMITED = "9223372036854771712"


@pytest.mark.parametrize(
    ("group", "files", "expected"),
    [
        ("0::/", {}, (16 * GIB, 12 * GIB)),
        (
            "0::/a/b",
            {"a/memory.max": f"{4 * GIB}\n", "a/memory.current": f"{GIB}\n", "a/b/memory.max": "max\n"},
            (4 * GIB, 3 * GIB),
        ),
        (
            "0::/a",
            {
                "a/memory.max": f"{4 * GIB}",
                "a/memory.current": f"{3 * GIB}",
                "a/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
            },
            (4 * GIB, 3 * GIB),
        ),
        ("4:memory:/job\n0::/", {V1 + "limit_in_bytes": f"{2 * GIB}", V1 + "usage_in_bytes": f"{3 * GIB}"}, (2 * GIB, 0)),
        ("4:memory:/job\n0::/", {V1 + "limit_in_bytes": UNLIMITED, V1 + "usage_in_bytes": "5"}, (16 * GIB, 12 * GIB)),
        ("4:memory:/host/path", {"memory/memory.limit_in_bytes": f"{GIB}", "memory/memory.usage_in_bytes": "0"}, (GIB, GIB)),
    ],
    ids=["no-limit", "parent-limits", "file-cache-is-free", "v1", "v1-unlimited", "v1-in-container"],
)
def test_memory_is_that_of_the_control_group(
    tmp_path: Path, group: str, files: dict[str, str], expected: tuple[int, int]
) -> None:
    write(tmp_path, {"meminfo": MEMINFO, "cgroup": group, **{f"fs/{name}": text for name, text in files.items()}})
    assert memory_bytes(tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "fs") == expected


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/a", {"a/cpu.max": "max 100000"}, None),
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "200000 100000"}, 1.5),
        ("2:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "50000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 0.5),
        ("2:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, None),
    ],
    ids=["v2-unlimited", "v2-tightest", "v1", "v1-unlimited"],
)
def test_cpu_quota(tmp_path: Path, group: str, files: dict[str, str], cores: float | None) -> None:
    write(tmp_path, {"cgroup": group, **{f"fs/{name}": text for name, text in files.items()}})
    assert cpu_quota(tmp_path / "cgroup", tmp_path / "fs") == cores


def test_this_machine_has_memory() -> None:
    total, available = memory_bytes()
    assert 0 < available <= total
