"""Files of runs: locks, logs that grow, and what must survive a kill."""
