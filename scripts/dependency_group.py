"""Prints what groups of pyproject.toml's [dependency-groups] name, for a pip without --group: that of Python 3.11.

python scripts/dependency_group.py GROUP...
"""

import sys
import tomllib
from pathlib import Path

groups = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["dependency-groups"]
print(*(requirement for name in sys.argv[1:] for requirement in groups[name]))
