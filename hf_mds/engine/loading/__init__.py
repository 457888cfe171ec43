"""Batches from workers to the training loop; this alone imports torch."""
