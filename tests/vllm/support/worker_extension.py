"""Imported by every spawned worker before the model is built (worker_extension_cls): applies the CPU patch there."""

from __future__ import annotations

import os

from support import cpu_patches

PATCH_VARIABLE = "HOSTKV_TEST_PATCH"

cpu_patches.apply(os.environ.get(PATCH_VARIABLE, ""))


class Extension:
    """Methods that a test calls in every worker through collective_rpc."""
