"""The kernel that every part shares: events, wire format, bus, settings, clock and errors."""
