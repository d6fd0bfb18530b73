"""The engine: prompts in, generations out, over paged KV."""
