"""`python -m reknit.cli` is `reknit`."""

from reknit.cli import main

main()
