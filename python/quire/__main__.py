# SPDX-License-Identifier: MIT
"""`python -m quire` and the script `quire` replace themselves with the bundled command."""

from __future__ import annotations

import os
import sys

from .command import program


def main() -> None:
    path = str(program())
    sys.stdout.flush()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
