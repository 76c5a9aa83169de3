"""Long fault tests, run by `make chaos`. Tests that cut networks need root, for network namespaces."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "py"))
