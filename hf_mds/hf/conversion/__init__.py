"""Into MDS and out again: `to_mds`, `to_dataset`, `to_parquet`."""
