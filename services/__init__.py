"""The four independent services that decide; each runs as its own process."""
