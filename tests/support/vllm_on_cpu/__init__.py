"""Runs an unmodified vLLM without a GPU, for tests of any KV connector. Knows nothing of HostKV; see docs/testing.md.

Put the folder above this one on PYTHONPATH and import `vllm_on_cpu.environment` before vllm.
"""
