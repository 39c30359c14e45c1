"""The processes of one run: ranks, sums over them, and what rank 0 decides."""
