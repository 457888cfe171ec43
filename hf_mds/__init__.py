"""hf_mds: MDS shards for the Hugging Face world."""
