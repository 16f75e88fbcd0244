"""How the flat gradients of a step become one sum: over the ring's own links, or over gloo or NCCL."""
