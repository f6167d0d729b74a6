"""`python -m bandpo`, and `torchrun -m bandpo`: the command line."""

import sys

from .cli import main

sys.exit(main())
