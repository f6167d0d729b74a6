"""Limit what a page of ours may do in a browser."""

# A page fetches nothing and runs no script: a browser that is asked for either by what was in a file refuses.
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
    "'unsafe-inline'; base-uri 'none'; form-action 'none'\">"
)
