"""`python -m sora`, as torchrun starts it."""

import sys

from sora.cli import main

sys.exit(main())
