"""Joins format, plan and storage: streams, readers, writers, loaders."""
