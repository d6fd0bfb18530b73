"""Arrow schemas of the files we read and write, with a version in each file's metadata."""

import pyarrow as pa

VERSION_KEY = b"codegen_batch.schema"
TASK_VERSION = b"task/1"
RESULT_VERSION = b"result/1"
METRIC_VERSION = b"metric/1"

_strings = pa.list_(pa.string())
_utc = pa.timestamp("us", tz="UTC")

TASK = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        ("prompt", pa.string()),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("language", pa.string()),
        ("entry_point", pa.string()),
        ("test", pa.string()),
        ("test_kind", pa.string()),
        ("stdio_cases", pa.list_(pa.struct([("stdin", pa.string()), ("stdout", pa.string())]))),
        ("reference", pa.string()),
        ("priority", pa.string()),
        ("session_id", pa.string()),
        ("turn", pa.int32()),
        ("context", pa.list_(pa.struct([("path", pa.string()), ("text", pa.string())]))),
        ("limits", pa.struct([("cpu_s", pa.float64()), ("wall_s", pa.float64()), ("memory_mb", pa.int64())])),
        ("compare", pa.struct([("mode", pa.string()), ("abs_tol", pa.float64()), ("rel_tol", pa.float64())])),
        ("metadata", pa.string()),
    ],
    metadata={VERSION_KEY: TASK_VERSION},
)

RESULT = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("fingerprint", pa.string(), nullable=False),
        # generation
        ("completion", pa.string()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("cached_prompt_tokens", pa.int32()),
        ("completion_tokens", pa.int32()),
        ("ttft_ms", pa.float64()),
        ("latency_ms", pa.float64()),
        ("decode_tokens_per_second", pa.float64()),
        ("batch_id", pa.int64()),
        ("worker", pa.int32()),
        ("seed", pa.int64()),
        # code
        ("code", pa.string()),
        ("extract_method", pa.string()),
        ("language", pa.string()),
        ("syntax_ok", pa.bool_()),
        ("syntax_error", pa.string()),
        ("functions", _strings),
        ("classes", _strings),
        ("imports", _strings),
        ("max_nesting", pa.int32()),
        # judging
        ("verdict", pa.string()),
        ("verdict_detail", pa.string()),
        ("trust", pa.string()),
        ("tests_run", pa.int32()),
        ("tests_passed", pa.int32()),
        ("cpu_ms", pa.float64()),
        ("wall_ms", pa.float64()),
        ("peak_memory_mb", pa.float64()),
        ("stdout_tail", pa.string()),
        ("stderr_tail", pa.string()),
        ("isolation", pa.string()),
        # failure
        ("error_stage", pa.string()),
        ("error_code", pa.string()),
        ("error_message", pa.string()),
        ("started_at", _utc),
        ("finished_at", _utc),
    ],
    metadata={VERSION_KEY: RESULT_VERSION},
)

METRIC = pa.schema(
    [
        pa.field("scope", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("value", pa.float64()),
        ("unit", pa.string()),
        ("n", pa.int64()),
        ("ci_low", pa.float64()),
        ("ci_high", pa.float64()),
    ],
    metadata={VERSION_KEY: METRIC_VERSION},
)
