"""A member of a pretend run as a process of its own: completes a step for each line on its standard input.

python -m support.member_process <name> <floats>     prints its address, then the step it is at after each line
"""

from __future__ import annotations

import sys

from support.feeds import PretendMember, Truth


def main() -> None:
    name, floats = sys.argv[1:]
    member = PretendMember(name, Truth(int(floats)))
    print(member.listener.address, flush=True)
    for step, _ in enumerate(sys.stdin):
        member.complete(step)
        member.wait_for(step + 1)
        print(step + 1, flush=True)
    member.close()


if __name__ == "__main__":
    main()
