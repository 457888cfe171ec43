"""A plugin of axolotl: `plugins: [hf_mds.train.axolotl.MDSPlugin]` and `streaming: true` make its datasets MDS ones."""

from __future__ import annotations

from hf_mds.errors import MissingExtraError

try:
    from hf_mds.train.axolotl.plugin import MDSPlugin
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "axolotl":
        raise
    raise MissingExtraError("hf_mds.train.axolotl is a plugin of axolotl; install that: pip install axolotl") from error

__all__ = ["MDSPlugin"]
