"""A plugin of axolotl: `plugins: [hf_mds.train.axolotl.MDSPlugin]` and `streaming: true` make its datasets MDS ones."""

from __future__ import annotations

from hf_mds.train.axolotl.plugin import MDSPlugin

__all__ = ["MDSPlugin"]
