"""What the KV cache's type costs: KL divergence and top-1 agreement against a float32 cache, on a float32 model.

Six sequences, each the prompts and reference solutions of three HumanEval problems, scored through the engine's own
cache. Usage: python tests/measure/kv_accuracy.py MODEL [PAGE_SIZE ...]
"""

import gzip
import json
import sys
from pathlib import Path

import torch
from codegen_batch import Engine
from codegen_batch.schemas.job import Batching, KvCache

DATA = Path(__file__).parents[2] / "data/humaneval/HumanEval.jsonl.gz"


def scores(model: str, cache: KvCache, texts: list[str]) -> tuple[list[torch.Tensor], list[list[int]]]:
    engine = Engine(model, batching=Batching(max_sequences=2), kv_cache=cache, dtype="float32", max_context=2048)
    ids = [engine.tokenizer.encode(text, allow_special=False) for text in texts]
    return [engine.score(row).log_softmax(-1) for row in ids], ids


def main(model: str, page_sizes: list[int]) -> None:
    with gzip.open(DATA, "rt") as lines:
        problems = [row["prompt"] + row["canonical_solution"] for row in map(json.loads, lines)]
    texts = ["\n".join(problems[i : i + 3]) for i in range(0, 18, 3)]
    exact, ids = scores(model, KvCache(dtype="float32"), texts)
    print("cache", "page", "tokens", "ppl", "KL", "top-1", sep="\t")
    for cache in [
        KvCache(dtype="float32"),
        KvCache(dtype="bf16"),
        *(KvCache(dtype="int4", page_size=size) for size in page_sizes),
    ]:
        rows, _ = scores(model, cache, texts)
        kl = torch.cat([(p.exp() * (p - q)).sum(-1) for p, q in zip(exact, rows, strict=True)]).mean()
        same = torch.cat([p.argmax(-1) == q.argmax(-1) for p, q in zip(exact, rows, strict=True)]).float()
        nll = torch.cat([-q[:-1].gather(1, torch.tensor(t[1:])[:, None]) for q, t in zip(rows, ids, strict=True)]).mean()
        print(
            cache.dtype, cache.page_size, len(same), f"{nll.exp():.3f}", f"{kl:.5f}", f"{same.mean():.4f}", sep="\t", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1], [int(size) for size in sys.argv[2:]] or [32])
