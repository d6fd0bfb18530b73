"""The validators: completions in, judgements out. Never imports the engine."""
