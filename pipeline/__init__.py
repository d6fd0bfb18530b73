"""The flow: job file → tasks → prompts → plan → generate → validate → commit."""
