"""The supervisor of a node: starts the workers, watches them, ends them; one process a node.

`decide.py` is the pure reducer over `state.py`; `restart.py`, `stuck.py`, `world.py`, `exits.py`, `ending.py` are its
rules, a concept each.
`app.py` is the only asyncio. `lifeline.py` and `deathwatch.py` tell of a death before there is anything to reap.
`forkserver.py`, `preload.py` and `guard.py` make the processes between agent and worker:

    agent ── guard (subreaper; sweeps when the agent dies) ── forkserver (torch imported) ── workers
"""
