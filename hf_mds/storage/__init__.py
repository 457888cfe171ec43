"""Everything that touches a disk or a network: remote folders, and the cache of shards on this machine."""

from __future__ import annotations

from hf_mds.storage.cache import CacheUsage, ShardCache, default_cache_root
from hf_mds.storage.eviction import CacheEntry, plan_eviction
from hf_mds.storage.faults import AccessDeniedError, MissingFileError
from hf_mds.storage.opening import UnknownSchemeError
from hf_mds.storage.redact import redact_url
from hf_mds.storage.remote import Remote
from hf_mds.storage.urls import split_file_url

__all__ = [
    "AccessDeniedError",
    "CacheEntry",
    "CacheUsage",
    "MissingFileError",
    "Remote",
    "ShardCache",
    "UnknownSchemeError",
    "default_cache_root",
    "plan_eviction",
    "redact_url",
    "split_file_url",
]
