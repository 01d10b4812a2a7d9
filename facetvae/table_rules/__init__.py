"""Rules for tables, on NumPy arrays alone: how many facets and clusters a table has, which columns
belong together, and which rows are outliers. Nothing here imports PyTorch.
"""
