"""Limit what a page of ours may do in a browser."""

import base64
import hashlib


def policy(script: str = "") -> str:
    """Return the policy of a page that fetches nothing and runs this script only.

    A browser that is asked for either by what was in a file refuses.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; " if script else ""
    return (
        f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; {allowed}style-src '
        "'unsafe-inline'; base-uri 'none'; form-action 'none'\">"
    )
