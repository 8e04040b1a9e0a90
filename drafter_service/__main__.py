"""`python -m drafter_service`."""

import sys

from drafter_service.process import main

if __name__ == "__main__":
    sys.exit(main())
