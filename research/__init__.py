"""What the claims about rules rest on: small worlds, contests, measurements and the report. It is not in the wheel.

Run it from the root of the repository, such as `python -m research.bench research/contests/rare_and_noisy.yaml`.
"""
