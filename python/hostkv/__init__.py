"""HostKV: keeps the KV cache of an LLM engine in host memory and loads it back.

`hostkv.vllm` is the adapter for vLLM; importing `hostkv` imports neither torch nor vllm.
"""

from __future__ import annotations

from hostkv._core import __version__

__all__ = ["__version__"]
