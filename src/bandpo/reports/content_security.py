"""What a browser may do with a page of ours."""

# Our pages have no script and fetch nothing: a browser that is asked for either by what was in a file refuses.
POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'\">"
)
