"""Decides when state is saved, who writes which chunk, and which checkpoint counts."""
