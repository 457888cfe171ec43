"""Datasets as they lie in their folders: the index, the shards on this machine, and what of them may be read."""
