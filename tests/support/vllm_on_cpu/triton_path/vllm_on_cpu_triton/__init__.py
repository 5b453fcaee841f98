"""The Triton backend "cpu" that vLLM's CPU build asks for, empty: with TRITON_INTERPRET=1 nothing is compiled.

Triton finds it by the entry point beside this package, in every process that has the folder on its path.
"""
