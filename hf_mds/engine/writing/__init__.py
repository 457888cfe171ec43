"""Samples -> shards -> index.json, by one writer or many, resumable."""
