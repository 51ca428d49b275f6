"""Command line of the stand-in."""

import sys

from serve_apps.engine.fake.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
