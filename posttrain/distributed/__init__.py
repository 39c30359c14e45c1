"""The processes of one run: ranks, sums over them, and decisions of rank 0."""
