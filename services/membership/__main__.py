"""`python -m reknit.services.membership`."""

import asyncio
import sys

from reknit.core.errors import ReknitError

from .app import main

if __name__ == "__main__":
    try:
        asyncio.run(main())
    except ReknitError as error:
        sys.stderr.write(f"membership: {error}" + (f" ({error.hint})" if error.hint else "") + "\n")
        sys.exit(error.exit_code)
