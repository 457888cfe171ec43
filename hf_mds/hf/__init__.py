"""MDS for `datasets`: features, examples, loading. Nothing is imported before it is needed."""
