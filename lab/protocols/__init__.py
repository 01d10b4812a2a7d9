"""The experiments of the papers, with all of their settings as flags."""
