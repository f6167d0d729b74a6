"""Worker processes with a hard limit of time and memory for every task: the pool, and how it speaks to them."""
