"""``python -m draftwire.cli``."""

from draftwire.cli import main

if __name__ == "__main__":
    main()
