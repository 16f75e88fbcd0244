"""`python -m reknit.services.checkpoint`."""

from .app import main

main()
