import os

# Before torch is imported: its profiler would announce each of its starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")
