"""Elastic data-parallel training that survives the loss of any process."""
