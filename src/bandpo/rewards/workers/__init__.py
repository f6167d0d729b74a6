"""Run tasks in worker processes with a hard limit of time and memory. Here are the pool and its messages."""
