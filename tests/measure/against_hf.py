"""Generation speed against Hugging Face generate: the same weights, prompts and stop tokens, one after the other, in turns.

Usage: python tests/measure/against_hf.py MODEL HF_PYTHON HF_FOLDER [--prompts 41] [--new 512] [--turns 1] [--dtype float32]

MODEL is what a job names; HF_FOLDER has the same weights for transformers, which HF_PYTHON (a Python with torch and
transformers) loads. Both take the prompts as one batch, ours dynamic, theirs padded on the left; greedy. `--dtype` is
the type for both.
"""

import argparse
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

DATA = Path(__file__).parents[2] / "data/humaneval/HumanEval.jsonl.gz"
ASK = "Complete the following Python function. Answer with the whole function in one Markdown code block.\n\n```python\n{}\n```"


def prompts(model: str, count: int) -> list[str]:
    """Chat texts of every fourth HumanEval task."""
    from codegen_batch.pipeline.engine.tokenizer import Tokenizer
    from codegen_batch.pipeline.engine.weights import locate
    from codegen_batch.schemas.records import Message

    tokenizer = Tokenizer.load(locate(model, Path.cwd()))
    with gzip.open(DATA, "rt") as lines:
        tasks = [json.loads(line)["prompt"] for line in lines]
    chosen = tasks[:: max(1, len(tasks) // count)][:count]
    return [tokenizer.chat([Message("user", ASK.format(task.strip()))]).text for task in chosen]


def ours(model: str, texts: list[str], new: int, dtype: str) -> dict[str, Any]:
    from codegen_batch import Engine, Sampling
    from codegen_batch.pipeline.engine.engine import Request

    engine = Engine(model, Sampling(max_new_tokens=new), dtype=dtype, max_context=4096)
    began = time.perf_counter()
    for i, text in enumerate(texts):
        engine.add(Request(str(i), tuple(engine.tokenizer.encode(text, allow_special=True)), (0,)))
    tokens = 0
    while engine.busy:
        tokens += sum(len(finished.tokens) for finished in engine.step())
    return {"tokens": tokens, "seconds": time.perf_counter() - began}


def theirs(folder: str, texts: list[str], new: int, dtype: str) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    began = time.perf_counter()
    batch = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    rows = model.generate(**batch, max_new_tokens=new, do_sample=False)[:, batch.input_ids.shape[1] :].tolist()
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    tokens = sum(next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in rows)
    return {"tokens": tokens, "seconds": time.perf_counter() - began}


def turn(python: str, side: str, model: str, texts: list[str], new: int, dtype: str) -> float:
    command = [python, __file__, "--side", side, model, "", "", "--new", str(new), "--dtype", dtype]
    done = subprocess.run(command, input=json.dumps(texts), stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    rate: float = found["tokens"] / found["seconds"]
    print(f"{side:7} {found['tokens']:6} tokens {found['seconds']:7.1f} s {rate:7.1f} tokens/s", flush=True)
    return rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("hf_python")
    parser.add_argument("hf_folder")
    parser.add_argument("--prompts", type=int, default=41)
    parser.add_argument("--new", type=int, default=512)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        measure = ours if args.side == "ours" else theirs
        print(json.dumps(measure(args.model, json.load(sys.stdin), args.new, args.dtype)))
        return
    texts = prompts(args.model, args.prompts)
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(args.turns):
        rates["ours"].append(turn(sys.executable, "ours", args.model, texts, args.new, args.dtype))
        rates["theirs"].append(turn(args.hf_python, "theirs", args.hf_folder, texts, args.new, args.dtype))
    print(f"ours / theirs: {median(rates['ours']) / median(rates['theirs']):.2f}")


if __name__ == "__main__":
    main()
