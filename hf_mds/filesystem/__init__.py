"""mds://: an fsspec filesystem over the samples of a dataset. Registered by `fsspec.specs` and by `import hf_mds`."""

from __future__ import annotations

from hf_mds.filesystem.system import MDSFileSystem

__all__ = ["MDSFileSystem"]
