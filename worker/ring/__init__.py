"""The ring between workers: links, frames, ordered reduction and roll call."""
