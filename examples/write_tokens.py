"""Writes log-probabilities of your own loop for `bandpo calibrate`.

Call `write` after the loss, in all steps of a batch. A few hundred responses are enough.
"""

import json


def write(file, old_logps, logps, advantages, mask, names):
    """Write a row for each response; tensors are (B, T), advantages (B,), names of responses (B,)."""
    for old, new, advantage, real, name in zip(old_logps, logps.detach(), advantages, mask.bool(), names, strict=True):
        row = {"response_id": name, "old_logps": old[real].tolist(), "logps": new[real].tolist()}
        file.write(json.dumps(row | {"advantage": advantage.item()}) + "\n")
