"""Lets load_dataset("mds", ...) work in programs that never import hf_mds, such as `trl sft`, and in their processes.

`datasets` has no plug-ins. So a .pth file beside this module has every Python of the environment run `install` when it
starts. That must cost nothing and never fail: hf_mds is imported when `datasets` is, and not before.
HF_MDS_AUTOLOAD=0 in the environment turns it off. What hf_mds does then is in `hf_mds.autoload`.
"""

import os
import sys

__all__ = ["install"]


def install():
    """Have hf_mds imported as soon as `datasets` is looked for."""
    if os.environ.get("HF_MDS_AUTOLOAD") != "0" and "datasets" not in sys.modules:
        sys.meta_path.insert(0, _Finder)


class _Finder:
    """Finds nothing itself: hf_mds puts a finder of its own in its place."""

    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname != "datasets":
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _Finder]
        try:
            if "hf_mds" not in sys.modules:
                from hf_mds.autoload import install_quietly

                install_quietly()
        except Exception:  # noqa: BLE001 - of a package half removed, say: `datasets` works without it
            pass
        for finder in list(sys.meta_path):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None
