"""Gossip between agents: who is there, seen by the neighbours, without a broker. Sans-I/O: see `node`."""
