"""For `worker_extension_cls`: importing this module applies the patches of the process that started the worker.

vLLM imports the extension in each worker before it builds the model. An extension of your own does the same by
importing this module.
"""

from __future__ import annotations

from vllm_on_cpu import start_patches

start_patches.apply_inherited()


class Extension:
    """Adds nothing to the worker."""


NAME = f"{__name__}.{Extension.__name__}"
