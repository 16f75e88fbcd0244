"""Watches every event and heartbeat, and raises and clears alerts."""
