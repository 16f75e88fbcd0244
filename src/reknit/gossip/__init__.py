"""Gossip between agents: who is there, seen by the neighbours, without a broker.

`gossip.Gossip` is the whole protocol without a socket, a clock or a thread: packets and timers go in, packets and
happenings come out. The same class runs in the simulator and behind a UDP socket.

    preset       every figure of the protocol
    identity     who a node is
    happening    what its owner should know of the others
    message      what a packet is made of
    rumour       one statement about one member, and which of two is newer
    roster       members that many nodes agree on, with the rings they stand in
    view         a roster and what was heard since
    health       how well this node itself does (Lifeguard)
    suspicion    how long a suspect may refute
    spread       rumours on their way, each so many times
    hearsay      what a node makes of the rumours it hears
    outgoing     packets, and the rumours that ride along
    observing    the K rings: which subjects do not answer
    probing      SWIM: one after the other, through others if need be
    syncing      what two views differ in
    tally        the H/L rule over what observers report
    keyring, replay, codec   packets as sealed datagrams
"""
