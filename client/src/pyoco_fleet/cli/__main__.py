"""`python -m pyoco_fleet.cli` is `pyoco-client`."""

from .main import run

if __name__ == "__main__":
    run()
