"""The scripts of the races are on the path of their tests."""
import pathlib
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TOP / "bench"), str(TOP / "bench" / "peers")]
