"""A cluster of up to ten thousand nodes in one process, in virtual time, from one integer seed.

The real reducer and the real gossip core run over a twin of the broker and of the network. See `cluster` for the whole,
`faults` for what can go wrong, `invariants` for what must hold whatever goes wrong.
"""
