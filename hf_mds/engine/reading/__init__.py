"""Samples by number, from the shards of any number of streams."""
