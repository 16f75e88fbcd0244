"""Decides who takes part: weighs evidence and publishes the next world."""
