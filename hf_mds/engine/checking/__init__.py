"""Whole datasets: verified, repaired, compared."""
