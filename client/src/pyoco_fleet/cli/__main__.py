"""`python -m pyoco_fleet.cli` is `pyoco-client`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
