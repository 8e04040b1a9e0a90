"""`python -m verifier_service`."""

import sys

from verifier_service.process import main

if __name__ == "__main__":
    sys.exit(main())
