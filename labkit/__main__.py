"""`python -m labkit` is `lab`; with --detached OUT first, it leaves in OUT how it ended (labkit.compare.background)."""

import sys
from pathlib import Path

from labkit.cli import main
from labkit.compare.background import DETACHED, attend

if __name__ == "__main__":
    if sys.argv[1:2] == [DETACHED]:
        attend(main, Path(sys.argv[2]), sys.argv[3:])
    main()
