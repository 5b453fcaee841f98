"""vLLM's own scheduler over ranks that hold real bytes: see docs/testing.md."""
